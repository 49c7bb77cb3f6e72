"""Rules of AWS that both simulated accounts follow: fleets, instance states, queues, events, schedules, prices, errors."""
