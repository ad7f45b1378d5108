// Command sandmand is the daemon inside every sandbox: it runs commands and serves files for whoever holds the
// sandbox's token. See PROTOCOL.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/config"
	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/files"
	"sandman.dev/daemon/internal/httpd"
	"sandman.dev/daemon/internal/pid1"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/proc"
	"sandman.dev/daemon/internal/server"
	"sandman.dev/daemon/internal/session"
)

// version is set by the build: -ldflags "-X main.version=…".
var version = "0.1.0"

func main() {
	log.SetFlags(0)
	log.SetPrefix("sandmand: ")
	if err := run(os.Args[1:]); err != nil {
		log.Print(err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "version":
		fmt.Println(version)
		return nil
	case len(arguments) == 1 && arguments[0] == "noop":
		// What the service runs to prove a sandbox usable: the one program that every image is sure to hold.
		return nil
	case len(arguments) == 0 || arguments[0] != "serve":
		return errors.New("usage: sandmand serve [--config-fd N | --config FILE] | sandmand version | sandmand noop")
	}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	fd := flags.Int("config-fd", -1, "")
	file := flags.String("config", "", "")
	if err := flags.Parse(arguments[1:]); err != nil || flags.NArg() > 0 {
		return errors.New("usage: sandmand serve [--config-fd N | --config FILE]")
	}
	c, err := config.Load(config.Source{FD: *fd, File: *file})
	if err != nil {
		return err
	}
	return serve(c)
}

func serve(c *config.Config) error {
	pid1.Settle()
	listener, err := listen(c.Listen)
	if err != nil {
		return err
	}
	proc.LimitProcesses(c.MaxProcesses)
	proc.ReapOrphans()
	registry := execs.NewRegistry(c)
	sessions := session.New()
	registry.Sessions = sessions
	fileCalls := files.New(files.Options{DefaultDir: c.Workdir, User: c.User, Lookup: fileUser})
	httpServer := &httpd.Server{
		Handler:        server.New(c, registry, sessions, fileCalls, version),
		MaxConnections: min(c.MaxConnections, descriptorLimit()/2),
	}
	stop := make(chan os.Signal, 4)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	var deadline <-chan time.Time
	if d := c.Deadline(); d > 0 {
		deadline = time.After(d)
	}
	failed := make(chan error, 1)
	go func() { failed <- httpServer.Serve(listener) }()
	select {
	case <-stop:
		log.Print("stopping: asked to")
	case <-deadline:
		log.Print("stopping: the deadline has passed")
	case err := <-failed:
		log.Printf("stopping: cannot listen any more: %v", err)
	}
	listener.Close()
	proc.KillAll(shutdownGrace)
	sessions.Shutdown()
	return nil
}

// descriptorLimit is how many this process may have. Connections get half of them, so that past their bound a caller is
// told so, and what they serve has the other half: without any left, nobody would be answered at all.
func descriptorLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || limit.Cur > 1<<20 {
		return 1 << 20
	}
	return int(limit.Cur)
}

// shutdownGrace is between TERM and KILL when the daemon goes: the sandbox is being taken back, nobody reads what
// its commands might still save, and whoever reclaims it waits.
const shutdownGrace = time.Second

func fileUser(user string) (files.Identity, error) {
	id, err := proc.Lookup(user)
	if err != nil {
		return files.Identity{}, problem.Invalid("user", err.Error())
	}
	return files.Identity{UID: id.UID, GID: id.GID, Groups: id.Groups}, nil
}

// listen opens what the configuration names; an inherited descriptor is the usual one, so that nothing of the
// socket is visible inside the sandbox.
func listen(address string) (net.Listener, error) {
	kind, rest, _ := strings.Cut(address, ":")
	switch kind {
	case "fd":
		n, _ := strconv.Atoi(rest)
		syscall.CloseOnExec(n)
		file := os.NewFile(uintptr(n), "listener")
		listener, err := net.FileListener(file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("cannot listen on descriptor %d: %w", n, err)
		}
		return listener, nil
	case "unix":
		if info, err := os.Lstat(rest); err == nil && info.Mode()&os.ModeSocket != 0 {
			_ = os.Remove(rest) // left by an earlier daemon; one that still listens loses it, as it should
		}
		old := syscall.Umask(0o177)
		listener, err := net.Listen("unix", rest)
		syscall.Umask(old)
		if err != nil {
			return nil, fmt.Errorf("cannot listen: %w", err)
		}
		return listener, nil
	default:
		listener, err := net.Listen("tcp", rest)
		if err != nil {
			return nil, fmt.Errorf("cannot listen: %w", err)
		}
		return listener, nil
	}
}
