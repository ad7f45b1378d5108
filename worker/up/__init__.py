"""`sandman up`: the whole service on one machine under one supervisor.

The supervisor owns every process and holds the sandboxes' lives: it is the parent that the kernel watches. It imports no web
framework, Redis client or provider, because it lives as long as the service and does next to nothing; what needs those runs as
short processes of its own (`probe`, `drain`).

    options     the command line                   preflight, probe   what must be right before anything starts
    folders     where things lie                   spawn, children    processes that cannot outlive the supervisor
    keys        the file of API keys               supervisor         starting, watching, stopping
    report, status, http                           drain              taking back every sandbox at the end
"""
