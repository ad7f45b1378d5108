package files

// What the daemon says of one file: the same members in stat, list and the answers of every change, and
// the same facts as X-Sandman-* headers on GET and HEAD.

import (
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// Entry is one file as JSON. Its numbers are what lstat told; nothing is followed.
type Entry struct {
	Name      string  `json:"name"`
	NameB64   string  `json:"name_b64,omitempty"`
	Path      string  `json:"path"`
	PathB64   string  `json:"path_b64,omitempty"`
	Type      string  `json:"type"`
	Size      int64   `json:"size"`
	Mode      string  `json:"mode"`
	Modified  float64 `json:"mtime"` // unix seconds
	UID       uint32  `json:"uid"`
	GID       uint32  `json:"gid"`
	Links     uint64  `json:"links"`
	Target    string  `json:"target,omitempty"` // of a symlink
	TargetB64 string  `json:"target_b64,omitempty"`
	Error     string  `json:"error,omitempty"`   // errno name: a directory whose entries could not be read
	Created   *bool   `json:"created,omitempty"` // answers of changes: false when it was there before
}

func newEntry(path, name string, st syscall.Stat_t) Entry {
	entry := Entry{
		Type: typeName(uint32(st.Mode)), Size: st.Size, Mode: modeText(st), Modified: unixSeconds(st.Mtim),
		UID: st.Uid, GID: st.Gid, Links: uint64(st.Nlink),
	}
	entry.Name, entry.NameB64 = pathText(name)
	entry.Path, entry.PathB64 = pathText(path)
	return entry
}

// withTarget reads where a symlink leads; one that vanished meanwhile simply has none.
func (e *Entry) withTarget(dir int, name string) {
	if e.Type != "symlink" {
		return
	}
	if target, err := readlinkat(dir, name); err == nil {
		e.Target, e.TargetB64 = pathText(target)
	}
}

func modeText(st syscall.Stat_t) string { return fmt.Sprintf("%04o", uint32(st.Mode)&0o7777) }

func unixSeconds(t syscall.Timespec) float64 {
	return float64(t.Sec) + float64(t.Nsec/1000)/1e6 // a float64 holds microseconds, not nanoseconds
}

func setFileHeaders(header http.Header, st syscall.Stat_t) {
	modified := time.Unix(int64(st.Mtim.Sec), int64(st.Mtim.Nsec))
	header.Set("Last-Modified", modified.UTC().Format(http.TimeFormat))
	header.Set("X-Sandman-Type", typeName(uint32(st.Mode)))
	header.Set("X-Sandman-Size", strconv.FormatInt(st.Size, 10))
	header.Set("X-Sandman-Mode", modeText(st))
	header.Set("X-Sandman-Mtime", strconv.FormatFloat(unixSeconds(st.Mtim), 'f', 6, 64))
	header.Set("X-Sandman-Uid", strconv.FormatUint(uint64(st.Uid), 10))
	header.Set("X-Sandman-Gid", strconv.FormatUint(uint64(st.Gid), 10))
}

// etag changes whenever a PUT replaces the file (another inode) or a process writes to it (another time).
func etag(st syscall.Stat_t) string {
	return fmt.Sprintf(`"%x-%x-%x-%x"`, st.Dev, st.Ino, st.Size, int64(st.Mtim.Sec)*1e9+int64(st.Mtim.Nsec))
}
