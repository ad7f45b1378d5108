package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func status(t testing.TB, d *daemon, field string) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(d.cmd.Process.Pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := bytes.Cut(raw, []byte(field+":"))
	if !found {
		t.Fatalf("no %s in the daemon's status", field)
	}
	n, _ := strconv.Atoi(strings.Fields(string(rest))[0])
	return n
}

func descriptors(t testing.TB, d *daemon) int {
	t.Helper()
	names, _ := filepath.Glob("/proc/" + strconv.Itoa(d.cmd.Process.Pid) + "/fd/*")
	return len(names)
}

// startInit runs the daemon as the first process of a PID namespace.
func startInit(t *testing.T) *daemon {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return startAs(t, "init", nil, attr)
}

func TestB027OrphansAreReaped(t *testing.T) {
	d := startInit(t)
	before := d.sh("ls /proc | grep -c '^[0-9]'").Stdout
	for i := range 60 {
		r := d.sh("(setsid sh -c 'sleep 0.2' &); exit " + strconv.Itoa(i))
		expect(t, r, i, "")
	}
	time.Sleep(time.Second)
	eventually(t, "no zombie and no process is left", func() bool {
		r := d.sh("grep -l 'State:.Z' /proc/[0-9]*/status; ls /proc | grep -c '^[0-9]'")
		return r.Stdout == before
	})
}

func TestInitTakesEverythingDown(t *testing.T) {
	d := startInit(t)
	d.sh("setsid sleep 621 & (trap '' TERM; exec setsid sh -c 'trap \"\" TERM; sleep 622; sleep 622') & echo")
	d.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, "all are gone", func() bool { return count(t, "sleep 621") == 0 && count(t, "sleep 622") == 0 })
}

func TestTermTakesEverythingDown(t *testing.T) {
	d := start(t, nil)
	d.sh("setsid sleep 623 & (trap '' TERM; setsid sleep 623) & echo")
	d.sh("sleep 623 &", "session", "s")
	eventually(t, "they run", func() bool { return count(t, "sleep 623") >= 3 })
	d.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, "all are gone", func() bool { return count(t, "sleep 623") == 0 })
}

func TestDeadlineEndsTheDaemon(t *testing.T) {
	d := start(t, settings{"deadline_seconds": 0.5})
	d.call("POST", "/v1/exec", request{"command": "sleep 624", "background": true})
	eventually(t, "everything is gone", func() bool { return count(t, "sleep 624") == 0 && dead(d) })
}

func dead(d *daemon) bool {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(d.cmd.Process.Pid) + "/stat")
	return err != nil || bytes.Contains(raw, []byte(") Z "))
}
