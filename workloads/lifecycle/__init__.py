"""What a workload may do, and when: the rules of the product, as pure functions.

A workload is a promise to do something once. It *waits* (READY), is *claimed* by a worker (CLAIMED, RUNNING,
CHECKPOINTED), and ends: done (SUCCEEDED), given up for a person to look at (DEAD_LETTER, or TIMED_OUT where an operator
said so), or called off (CANCELLED). Between, it passes through FAILED, TIMED_OUT or RECOVERING within one commit, so
that history says *why* it waits again. CANCELLATION_REQUESTED is claimed work that was called off: its worker confirms,
or its lease ends. `states.py` has the table.

Four voices speak, and each has its files here:

- the **requester** asks for work (`admission`), for other work to be done first (`dependencies`);
- the **worker** takes it (`claims`) under a lease and a fence, and reports (`reports`);
- the **operator** steps in (`interventions`);
- the **clock** ends what takes too long (`deadlines`) and takes back what a dead worker held (`recovery`).

A rule takes a `Snapshot` of one workload, what is asked, and `now`; it answers with a `Decision` (the snapshot after
it, the events, what becomes of the attempt) or raises a `WorkloadError`, and then nothing has changed. There is no
clock here, no randomness, no setting and no database: what a rule needs, it is given. So each can be tried on every
state, and the authority can ask again on a fresh row whenever it has to.

What always holds (section 12 of the contract): an event follows the one before, by a legal pair; a workload has a
current claim exactly while it is held, and one open attempt exactly then; tokens and attempt numbers only rise; there
is a result exactly in SUCCEEDED; the attempts that count never exceed the budget.
"""
