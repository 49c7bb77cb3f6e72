package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/state/cost"
)

// examination is what one disruption method finds in the cluster as the scenario has it, whatever other methods find.
type examination struct {
	Method     string         `json:"method"`
	Reason     string         `json:"reason"`
	Candidates []candidate    `json:"candidates"` // by name
	Budgets    map[string]int `json:"budgets"`    // how many more nodes of each NodePool it may disrupt
	Commands   []command      `json:"commands"`
	// Alone are the commands for a candidate if it is the only one, by its name. Methods that look for several nodes at once
	// have none.
	Alone map[string]command `json:"alone,omitempty"`
	// WhyNot is what Karpenter's Events say about candidates without a command, by name.
	WhyNot map[string]string `json:"whyNot,omitempty"`
}

// candidate is a node that a method may disrupt.
type candidate struct {
	Name string `json:"name"`
	// Price is that of its offering per hour, Cost what it costs to move its pods.
	Price float64 `json:"price"`
	Cost  float64 `json:"cost"`
}

// command is what one disruption method found.
type command struct {
	Method       string      `json:"method"`
	Reason       string      `json:"reason"`
	Decision     string      `json:"decision"`
	Candidates   []string    `json:"candidates"`
	Replacements []nodeClaim `json:"replacements"`
	// Saving is the price of the candidates less that of the replacements' cheapest offerings, per hour.
	Saving float64 `json:"saving"`
}

// disruptor asks Karpenter's disruption methods.
type disruptor struct {
	*world
	clock *clocktesting.FakeClock
	now   time.Time
	costs *cost.ClusterCost
	// totals are those of the last method that was asked for its candidates.
	totals map[string]disruption.NodePoolTotals
}

// newDisruptor tells Karpenter what its own memory would hold: the price of each NodePool's nodes, and which nodes wait
// for a pod.
func (w *world) newDisruptor(ctx context.Context, clk *clocktesting.FakeClock) (*disruptor, error) {
	costs := cost.NewClusterCost(ctx, w.cloud, w.kube)
	nodes := map[string]string{} // by name: their provider ID
	for _, object := range w.objects {
		switch o := object.(type) {
		case *v1.NodeClaim:
			if err := costs.UpdateNodeClaim(ctx, o); err != nil {
				return nil, fmt.Errorf("the price of %s: %w", o.Name, err)
			}
		case *corev1.Node:
			nodes[o.Name] = o.Spec.ProviderID
		}
	}
	for _, object := range w.objects {
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName == "" && pod.Status.NominatedNodeName != "" {
			w.cluster.NominateNodeForPod(ctx, nodes[pod.Status.NominatedNodeName])
		}
	}
	return &disruptor{world: w, clock: clk, now: clk.Now(), costs: costs}, nil
}

// first asks the methods in their order until one of them has commands.
func (d *disruptor) first(ctx context.Context) ([]command, error) {
	defer skipWaits(d.clock)()
	for number := range d.methods() {
		found, err := d.examine(ctx, number)
		if err != nil || len(found.Commands) > 0 {
			return found.Commands, err
		}
	}
	return nil, nil
}

// each asks every method, those that examine nodes one by one also about each candidate alone.
func (d *disruptor) each(ctx context.Context) ([]examination, error) {
	defer skipWaits(d.clock)()
	var found []examination
	for number := range d.methods() {
		one, err := d.examine(ctx, number)
		if err != nil {
			return nil, err
		}
		if err := d.askAlone(ctx, number, &one); err != nil {
			return nil, err
		}
		found = append(found, one)
	}
	return found, nil
}

// methods are new each time: a method remembers a cluster in which it found nothing.
func (d *disruptor) methods() []disruption.Method {
	return disruption.NewMethods(d.clock, d.cluster, d.kube, d.provisioner, d.cloud, d.recorder, d.queue())
}

func (d *disruptor) queue() *disruption.Queue {
	return disruption.NewQueue(d.kube, d.recorder, d.cluster, d.clock, d.provisioner)
}

// examine takes the steps of Controller.disrupt for one method.
func (d *disruptor) examine(ctx context.Context, number int) (examination, error) {
	method := d.methods()[number]
	found := examination{
		Method: fmt.Sprintf("%T", method), Reason: string(method.Reason()), Candidates: []candidate{}, Commands: []command{},
		WhyNot: map[string]string{},
	}
	candidates, err := d.candidates(ctx, method)
	if err != nil {
		return found, err
	}
	for _, c := range candidates {
		found.Candidates = append(found.Candidates, candidate{Name: c.Name(), Price: c.Price, Cost: c.RescheduleDisruptionCost})
	}
	slices.SortFunc(found.Candidates, func(a, b candidate) int { return cmp.Compare(a.Name, b.Name) })
	if found.Budgets, err = disruption.BuildDisruptionBudgetMapping(
		ctx, d.cluster, d.clock, d.kube, d.cloud, d.recorder, method.Reason()); err != nil {
		return found, fmt.Errorf("budgets of %s: %w", found.Method, err)
	}
	if len(candidates) == 0 {
		return found, nil
	}
	d.recorder.forget()
	if found.Commands, err = d.compute(ctx, method, found.Budgets, candidates...); err != nil {
		return found, err
	}
	for _, c := range candidates {
		if message := d.recorder.about(c.Name()); message != "" && len(found.Commands) == 0 {
			found.WhyNot[c.Name()] = message
		}
	}
	return found, nil
}

// askAlone asks a method about each of its candidates, unless it does not examine them one by one. It leaves out the
// validation, which in a cluster that stays as it is only fails if Karpenter breaks a tie in another way.
func (d *disruptor) askAlone(ctx context.Context, number int, into *examination) error {
	common := disruption.MakeConsolidation(d.clock, d.cluster, d.kube, d.provisioner, d.cloud, d.recorder, d.queue())
	var fresh func() disruption.Method
	switch method := d.methods()[number].(type) {
	case *disruption.Drift:
		fresh = func() disruption.Method { return method }
	case *disruption.SingleNodeConsolidation:
		fresh = func() disruption.Method {
			return disruption.NewSingleNodeConsolidation(common, disruption.WithValidator(trusting{}))
		}
	default:
		return nil
	}
	into.Alone = map[string]command{}
	candidates, err := d.candidates(ctx, fresh())
	if err != nil {
		return err
	}
	for _, c := range candidates {
		method := fresh()
		if balanced, ok := method.(disruption.NodePoolTotalsSetter); ok {
			balanced.SetNodePoolTotals(d.totals)
		}
		d.recorder.forget()
		computed, err := d.compute(ctx, method, into.Budgets, c)
		if err != nil {
			return err
		}
		if len(computed) > 0 {
			into.Alone[c.Name()] = computed[0]
		} else {
			into.WhyNot[c.Name()] = d.recorder.about(c.Name())
		}
	}
	return nil
}

// trusting takes every command as valid.
type trusting struct{}

func (trusting) Validate(_ context.Context, found disruption.Command, _ time.Duration) (disruption.Command, error) {
	return found, nil
}

// candidates are those of a method, which gets the totals of the NodePools that its scores refer to.
func (d *disruptor) candidates(ctx context.Context, method disruption.Method) ([]*disruption.Candidate, error) {
	d.clock.SetTime(d.now)
	found, totals, err := disruption.GetCandidatesWithTotals(ctx, d.cluster, d.kube, d.recorder, d.clock, d.cloud,
		method.ShouldDisrupt, method.Class(), d.queue(), d.costs)
	if err != nil {
		return nil, fmt.Errorf("candidates of %T: %w", method, err)
	}
	if balanced, ok := method.(disruption.NodePoolTotalsSetter); ok {
		balanced.SetNodePoolTotals(totals)
	}
	d.totals = totals
	return found, nil
}

// compute are the commands of a method that do something.
func (d *disruptor) compute(
	ctx context.Context, method disruption.Method, budgets map[string]int, candidates ...*disruption.Candidate,
) ([]command, error) {
	computed, err := method.ComputeCommands(ctx, maps.Clone(budgets), candidates...)
	if err != nil {
		return nil, fmt.Errorf("commands of %T: %w", method, err)
	}
	found := []command{}
	for _, c := range computed {
		d.release(c)
		if c.Decision() != disruption.NoOpDecision {
			found = append(found, describeCommand(method, c))
		}
	}
	slices.SortFunc(found, func(a, b command) int { return slices.Compare(a.Candidates, b.Candidates) })
	return found, nil
}

// release gives back the share of a NodePool's limit that drift of static nodes takes for a replacement.
func (d *disruptor) release(c disruption.Command) {
	for _, candidate := range c.Candidates {
		if candidate.OwnedByStaticNodePool() {
			d.cluster.NodePoolState.ReleaseNodeCount(candidate.NodePool.Name, 1)
		}
	}
}

func describeCommand(method disruption.Method, c disruption.Command) command {
	told := command{
		Method: fmt.Sprintf("%T", method), Reason: string(method.Reason()), Decision: string(c.Decision()),
		Saving: c.SourceCost(), Candidates: c.SourceNodeNames(), Replacements: []nodeClaim{},
	}
	slices.Sort(told.Candidates)
	for _, replacement := range c.Replacements {
		described := describeClaim(replacement.NodeClaim)
		told.Replacements = append(told.Replacements, described)
		told.Saving -= described.Price
	}
	return told
}

// witness is a recorder of Events that keeps the last message about each object.
type witness struct {
	lock     sync.Mutex
	messages map[string]string
}

func (w *witness) Publish(published ...events.Event) {
	w.lock.Lock()
	defer w.lock.Unlock()
	for _, event := range published {
		if object, ok := event.InvolvedObject.(client.Object); ok {
			w.messages[object.GetName()] = event.Message
		}
	}
}

func (w *witness) forget() {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.messages = map[string]string{}
}

func (w *witness) about(name string) string {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.messages[name]
}

// skipWaits moves the clock on whenever Karpenter waits for it (it validates a command after 15 s) until the function
// it gives is called.
func skipWaits(clk *clocktesting.FakeClock) func() {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(time.Millisecond)
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
