"""Sandboxes on this machine, by bubblewrap.

| module | what it knows |
| --- | --- |
| provider, sandboxes | the worker's calls as coroutines; the blocking parts behind them |
| options, folders | settings of this provider; where everything lies and who may pass |
| state, processes, status | what is written down of a sandbox; naming a process beyond doubt; why a sandbox ended |
| catalogue, images, archives, unpack | which images there are; copies of them; OCI and docker formats; applying layers safely |
| host | the machine's own userland as an image |
| workspace, accounts, rootfs | a sandbox's own files; its user; paths inside a root that is not to be trusted |
| arguments, gate, launch | bubblewrap's arguments; how the supervisor becomes its parent; from workspace to daemon |
| hierarchy, cgroups, rlimits | where cgroups can be made; one sandbox's; what to do without |
| teardown, removal, watching | taking all of it away; deleting trees of any shape; noticing changes cheaply |
| programs, trial | the two programs a sandbox starts with; the proof that they work here |
"""
