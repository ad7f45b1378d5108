package proc

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// member is one live process of a tree, as a scan saw it. Its start time tells it from a later owner of the pid.
type member struct {
	pid, parent, group, session int
	start                       uint64
}

// scan lists the live processes of a tree. A process belongs to it by its tag; one that changed its own limit still
// belongs when it is in the tree's session or has a parent that belongs.
func (t *Tree) scan() ([]member, error) {
	pids, err := processIDs()
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	in := map[int]bool{}
	var members, untagged []member
	for _, pid := range pids {
		if pid == self || pid == t.Except {
			continue
		}
		tag, known := tagOf(pid)
		ours := known && tag&tagMask == tagPrefix
		if ours && tag != t.Tag {
			continue
		}
		m, alive := statOf(pid)
		switch {
		case !alive:
		case ours && t.Spare[pid] == m.start && m.start != 0:
		case ours:
			in[pid] = true
			members = append(members, m)
		default:
			untagged = append(untagged, m)
		}
	}
	for grew := true; grew; {
		grew = false
		for i, m := range untagged {
			if m.pid != 0 && (in[m.parent] || (t.Leader != 0 && m.session == t.Leader)) {
				in[m.pid] = true
				members = append(members, m)
				untagged[i].pid = 0
				grew = true
			}
		}
	}
	return members, nil
}

func processIDs() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if name[0] >= '1' && name[0] <= '9' {
			if pid, err := strconv.Atoi(name); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// tagOf reads a process's tag by the system call, or from /proc where another user's process refuses it.
func tagOf(pid int) (uint64, bool) {
	var limit syscall.Rlimit
	err := prlimit(pid, nil, &limit)
	if err == nil {
		return limit.Cur, true
	}
	if err == syscall.ESRCH {
		return 0, false
	}
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0, false
	}
	return parseLimits(raw)
}

func parseLimits(raw []byte) (uint64, bool) {
	const name = "Max realtime timeout"
	_, line, found := bytes.Cut(raw, []byte(name))
	if !found {
		return 0, false
	}
	fields := bytes.Fields(line)
	if len(fields) == 0 {
		return 0, false
	}
	value, err := strconv.ParseUint(string(fields[0]), 10, 64)
	return value, err == nil
}

// statOf reads what places a process; not alive: it is gone, or only waits for its parent to read its status.
func statOf(pid int) (member, bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return member{}, false
	}
	return parseStat(pid, raw)
}

func parseStat(pid int, raw []byte) (member, bool) {
	end := bytes.LastIndexByte(raw, ')') // the name in parentheses may hold anything, parentheses too
	if end < 0 {
		return member{}, false
	}
	f := bytes.Fields(raw[end+1:])
	if len(f) < 20 {
		return member{}, false
	}
	number := func(i int) int { n, _ := strconv.Atoi(string(f[i])); return n }
	m := member{pid: pid, parent: number(1), group: number(2), session: number(3)}
	m.start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	dead := f[0][0] == 'X' || (f[0][0] == 'Z' && number(17) <= 1) // a first thread may end before the others
	return m, !dead
}

// ignores says whether a process ignores a signal.
func ignores(pid int, sig syscall.Signal) bool {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	_, after, found := bytes.Cut(raw, []byte("\nSigIgn:\t"))
	if !found {
		return false
	}
	line, _, _ := bytes.Cut(after, []byte("\n"))
	mask, err := strconv.ParseUint(string(line), 16, 64)
	return err == nil && mask&(1<<(uint(sig)-1)) != 0
}
