"""The reporter's round as one state machine (pure): a state, the events that change it, and the effects it requests.

`step.step(state, event, now)` returns the next state and the effects. `reporter.agent` turns I/O into events and
effects into I/O. `--once` runs the same machine and prints what it would write.
"""
