// Command oracle answers scheduling questions with Karpenter itself, imported as a library.
//
//	oracle FILE…      one scenario per file, one answer per line
//	oracle < LINES    one scenario per line, one answer per line, until the input ends
//
// A scenario that cannot be read or answered gets an answer with an "error" in it; the ones after it are still
// answered. The exit status is 1 only if reading or writing itself fails.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/operator/logging"
)

func main() {
	log.SetLogger(logging.NopLogger)
	out := bufio.NewWriter(os.Stdout)
	var err error
	if len(os.Args) > 1 {
		err = answerFiles(os.Args[1:], out)
	} else {
		err = answerLines(os.Stdin, out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

// answerFiles answers the scenario in each file.
func answerFiles(paths []string, out *bufio.Writer) error {
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := write(out, reply(raw, path)); err != nil {
			return err
		}
	}
	return nil
}

// answerLines answers scenarios as they arrive, each before the next is read, so that a caller may take turns.
func answerLines(in io.Reader, out *bufio.Writer) error {
	lines := bufio.NewReader(in)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if err := write(out, reply(line, fmt.Sprintf("line %d", number))); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// reply is the answer to a scenario in JSON text, which is called name unless it names itself.
func reply(raw []byte, name string) (found answer) {
	defer func() {
		if trouble := recover(); trouble != nil {
			found = answer{Name: name, Error: fmt.Sprintf("Karpenter panicked: %v", trouble)}
		}
	}()
	asked, err := parse(raw)
	if asked.Name != "" {
		name = asked.Name
	}
	if err == nil {
		found, err = solve(asked)
	}
	if err != nil {
		found = answer{Error: err.Error()}
	}
	found.Name = name
	return found
}

func write(out *bufio.Writer, found answer) error {
	if err := json.NewEncoder(out).Encode(found); err != nil {
		return err
	}
	return out.Flush()
}
