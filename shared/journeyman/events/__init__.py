"""What wakes us: one envelope (`ports.Trigger`) for every source, and a parser per source.

``parse_trigger`` accepts what a function can be handed: an SQS record (its body is parsed), an EventBridge event, or a
message in our own wire format (forwarder, wake-up, schedule, sweep, API). What cannot be read raises
MalformedEventError, which names the message and says what to do; redelivery cannot help, so the message ends in the
dead-letter queue.
"""

from journeyman.events.parse import parse_trigger

__all__ = ["parse_trigger"]
