module sandman.dev/daemon

go 1.26
