"""Parses triggers: one parser per source, one closed union of values (`ports.Trigger`).

``parse_trigger`` accepts an SQS record (its body is parsed), an EventBridge event, or a message of ours (forwarder,
requeue, schedule, sweep). What cannot be read raises MalformedEventError, which names the message and says what to do;
redelivery cannot help, so the message ends in the dead-letter queue.
"""

from journeyman.events.parse import parse_trigger

__all__ = ["parse_trigger"]
