"""The path of a batch to the collectors: send queue, outbox, spool, uplinks, acknowledgements."""
