package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// script makes a random shell script of the things that go wrong in daemons: exit codes, sizes around pipe buffers,
// closed and redirected descriptors, background children, signals, and input that is read partly or not at all. Its
// outcome is the same every time.
func script(r *rand.Rand) string {
	sizes := []int{0, 1, 511, 4095, 4096, 65535, 65536, 65537, 131072, 300000}
	pieces := []func() string{
		func() string { return fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", sizes[r.IntN(len(sizes))]) },
		func() string { return fmt.Sprintf("head -c %d /dev/zero | tr '\\0' y >&2", sizes[r.IntN(len(sizes))]) },
		func() string { return fmt.Sprintf("(exit %d); echo $?", r.IntN(256)) },
		func() string { return "echo no newline | tr -d '\\n'" },
		func() string { return "printf '\\377\\000\\342\\211'" },
		func() string { return "sleep 5 & echo started" },
		func() string { return "(setsid sleep 5 &) ; echo detached" },
		func() string { return "(echo from a child; echo and its errors >&2) & wait $!" },
		func() string { return "exec 3>&1; echo three >&3; exec 3>&-" },
		func() string { return "(exec >&-; echo lost) 2>/dev/null; echo $?" },
		func() string { return "echo to errors 1>&2" },
		func() string { return "cat | wc -c" },
		func() string { return "head -c 3; echo" },
		func() string { return "read line; echo \"$line\"" },
		func() string {
			return fmt.Sprintf("sh -c 'kill -%d $$'; echo $?", []int{1, 2, 6, 9, 13, 15}[r.IntN(6)])
		},
		func() string { return "trap 'echo caught' TERM; kill -TERM $$" },
		func() string { return "yes | head -n 3" },
		func() string { return "pwd; umask; ulimit -c" },
		func() string { return "nosuchcommand" },
		func() string { return "/etc/passwd" },
	}
	ends := []func() string{
		func() string { return fmt.Sprintf("exit %d", r.IntN(300)) },
		func() string { return fmt.Sprintf("kill -%d $$", []int{1, 2, 9, 13, 15}[r.IntN(5)]) },
		func() string { return "exec sh -c 'echo replaced; exit 9'" },
		func() string { return "exec >&- 2>&-; exit 4" },
		func() string { return "false" },
		func() string { return "trap 'echo bye' EXIT" },
		func() string { return "if" },
		func() string { return "sleep 5 & exec 2>&-; kill -9 $$" },
	}
	var lines []string
	for range 1 + r.IntN(6) {
		lines = append(lines, pieces[r.IntN(len(pieces))]())
	}
	return strings.Join(append(lines, ends[r.IntN(len(ends))]()), "\n")
}

// TestDifferential runs the same scripts here and under the daemon. SANDMAND_SCRIPTS says how many, SANDMAND_SEED which.
func TestDifferential(t *testing.T) {
	scripts, seed := 120, rand.Uint64()
	if n, err := strconv.Atoi(os.Getenv("SANDMAND_SCRIPTS")); err == nil {
		scripts = n
	}
	if n, err := strconv.ParseUint(os.Getenv("SANDMAND_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("SANDMAND_SEED=%d", seed)
	d := start(t, nil)
	r := rand.New(rand.NewPCG(seed, 1))
	jobs := make(chan string)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for text := range jobs {
				compare(t, d, text)
			}
		})
	}
	for range scripts {
		jobs <- script(r)
	}
	close(jobs)
	group.Wait()
}

func compare(t *testing.T, d *daemon, text string) {
	input := strings.Repeat("input\n", 20_000)
	folder, err := os.MkdirTemp(d.dir, "plain") // plain files: the reference must not wait for background children
	if err != nil {
		t.Error(err)
		return
	}
	out, _ := os.Create(folder + "/out")
	errs, _ := os.Create(folder + "/err")
	reference := exec.Command("/bin/bash", "-c", text)
	reference.Stdin, reference.Dir = strings.NewReader(input), "/"
	reference.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	reference.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	reference.WaitDelay = 1
	reference.Stdout, reference.Stderr = out, errs
	err = reference.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("%v in\n%s", err, text)
		return
	}
	state := reference.ProcessState.Sys().(syscall.WaitStatus)
	code := state.ExitStatus()
	if state.Signaled() {
		code = 128 + int(state.Signal())
	}
	wantOut, _ := os.ReadFile(folder + "/out")
	wantErr, _ := os.ReadFile(folder + "/err")
	out.Close()
	errs.Close()
	os.RemoveAll(folder)
	got := d.exec(request{"command": text, "stdin": input, "encoding": "base64", "env": map[string]string{"HOME": "/root"}})
	gotOut, _ := base64.StdEncoding.DecodeString(got.Stdout)
	gotErr, _ := base64.StdEncoding.DecodeString(got.Stderr)
	if got.code() != code || (got.Signal != nil) != state.Signaled() || !bytes.Equal(gotOut, wantOut) || !bytes.Equal(unnumbered(gotErr), unnumbered(wantErr)) {
		t.Errorf("the daemon: code %d, %d and %d bytes, %.100q %.100q; plain: code %d, %d and %d bytes, %.100q %.100q\n%s",
			got.code(), len(gotOut), len(gotErr), gotOut, gotErr, code, len(wantOut), len(wantErr), wantOut, wantErr, text)
	}
	if got.Took > 4 {
		t.Errorf("took %.1f s:\n%s", got.Took, text)
	}
}

var pidInMessage = regexp.MustCompile(`(line \d+: +)\d+ `)

// unnumbered takes the process ids out of the shell's messages.
func unnumbered(p []byte) []byte { return pidInMessage.ReplaceAll(p, []byte("$1")) }
