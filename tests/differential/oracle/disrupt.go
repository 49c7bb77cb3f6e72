package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
)

// disrupt asks Karpenter's disruption methods in their order until one of them has commands.
func (w *world) disrupt(ctx context.Context, clk *clocktesting.FakeClock) ([]command, error) {
	defer skipWaits(clk)()
	queue := disruption.NewQueue(w.kube, w.recorder, w.cluster, clk, w.provisioner)
	for _, method := range disruption.NewMethods(clk, w.cluster, w.kube, w.provisioner, w.cloud, w.recorder, queue) {
		found, err := w.ask(ctx, clk, queue, method)
		if err != nil {
			return nil, fmt.Errorf("%T: %w", method, err)
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, nil
}

// ask gives the commands of one method that do something.
func (w *world) ask(
	ctx context.Context, clk *clocktesting.FakeClock, queue *disruption.Queue, method disruption.Method,
) ([]command, error) {
	candidates, err := disruption.GetCandidates(
		ctx, w.cluster, w.kube, w.recorder, clk, w.cloud, method.ShouldDisrupt, method.Class(), queue)
	if err != nil || len(candidates) == 0 {
		return nil, err
	}
	budgets, err := disruption.BuildDisruptionBudgetMapping(
		ctx, w.cluster, clk, w.kube, w.cloud, w.recorder, method.Reason())
	if err != nil {
		return nil, err
	}
	computed, err := method.ComputeCommands(ctx, budgets, candidates...)
	if err != nil {
		return nil, err
	}
	var found []command
	for _, c := range computed {
		if c.Decision() == disruption.NoOpDecision {
			continue
		}
		told := command{Method: fmt.Sprintf("%T", method), Reason: string(method.Reason()), Replacements: []nodeClaim{}}
		for _, candidate := range c.Candidates {
			told.Candidates = append(told.Candidates, candidate.Name())
		}
		slices.Sort(told.Candidates)
		for _, replacement := range c.Replacements {
			told.Replacements = append(told.Replacements, describeClaim(replacement.NodeClaim))
		}
		found = append(found, told)
	}
	return found, nil
}

// skipWaits moves the clock on whenever Karpenter waits for it (it validates a command after 15 s) until the function
// it gives is called.
func skipWaits(clk *clocktesting.FakeClock) func() {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if clk.HasWaiters() {
					clk.Step(16 * time.Second)
				}
			}
		}
	}()
	return func() { close(done) }
}
