// Command controlplane is Kubernetes' control plane in one program, for tests:
//
//	controlplane etcd|kube-apiserver|kube-scheduler|kube-controller-manager FLAG…
//
// Each sub-command is the program of that name, with all its flags. It ends when its standard input ends, so that no
// server outlives the test run that started it, however that run ended.
package main

import (
	"fmt"
	"io"
	"os"
	_ "time/tzdata" // CronJobs name time zones

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics, as in the released programs
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var programs = map[string]func() int{
	"etcd":                    etcd,
	"kube-apiserver":          kubernetes(apiserver.NewAPIServerCommand),
	"kube-controller-manager": kubernetes(controllers.NewControllerManagerCommand),
	"kube-scheduler":          kubernetes(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
}

func main() {
	run, known := lookUp(os.Args)
	if !known {
		fmt.Fprintln(os.Stderr, "usage: controlplane etcd|kube-apiserver|kube-scheduler|kube-controller-manager FLAG…")
		os.Exit(2)
	}
	os.Args = os.Args[1:] // each program reads its own name and flags there
	go endWithInput()
	os.Exit(run())
}

func lookUp(args []string) (func() int, bool) {
	if len(args) < 2 {
		return nil, false
	}
	run, known := programs[args[1]]
	return run, known
}

// endWithInput ends this process when whoever holds the other end of its standard input closes it, or dies. Nothing is
// shut down in an orderly way: what these servers hold is thrown away with them.
func endWithInput() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func etcd() int {
	etcdmain.Main(os.Args) // exits by itself when it fails
	return 0
}

// kubernetes runs a command as its released main does. The command is made when it is wanted: making one registers flags
// and feature gates for the whole process.
func kubernetes(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}
