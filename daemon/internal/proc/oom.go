package proc

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
)

// The kernel counts the processes that it killed for want of memory in the cgroup. Where the daemon can see its own
// cgroup it compares the count around a command; where it cannot, it never claims a kill.
var oomCounter struct {
	once sync.Once
	file *os.File
}

// OOMKills returns the count; false where it cannot be seen.
func OOMKills() (int64, bool) {
	oomCounter.once.Do(func() {
		own, _ := os.ReadFile("/proc/self/cgroup")
		for _, name := range oomCandidates(string(own)) {
			file, err := os.Open(name)
			if err != nil {
				continue
			}
			if _, ok := readOOMKills(file); ok {
				oomCounter.file = file
				return
			}
			file.Close()
		}
	})
	if oomCounter.file == nil {
		return 0, false
	}
	return readOOMKills(oomCounter.file)
}

// oomCandidates lists where the counter may be, given /proc/self/cgroup: at the cgroup's own path, or at the root of
// what is mounted, which in a cgroup namespace or a bind mount is the same cgroup.
func oomCandidates(own string) []string {
	var v1, v2 []string
	for line := range strings.SplitSeq(own, "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			continue
		}
		path := strings.TrimSuffix(f[2], "/")
		switch {
		case f[0] == "0" && f[1] == "":
			v2 = append(v2, "/sys/fs/cgroup"+path+"/memory.events")
		case strings.Contains(","+f[1]+",", ",memory,"):
			v1 = append(v1, "/sys/fs/cgroup/memory"+path+"/memory.oom_control")
		}
	}
	candidates := append(v1, v2...)
	return append(candidates, "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.oom_control")
}

func readOOMKills(file *os.File) (int64, bool) {
	var buffer [512]byte
	n, _ := file.ReadAt(buffer[:], 0)
	for line := range bytes.Lines(buffer[:n]) {
		if rest, found := bytes.CutPrefix(line, []byte("oom_kill ")); found {
			count, err := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64)
			return count, err == nil
		}
	}
	return 0, false
}
