package files

// File names are bytes. In a query they are percent-encoded bytes; in JSON they are text, and wherever
// the bytes are no UTF-8, also exact in a second member ending in _b64.

import (
	"encoding/base64"
	"strings"
	"syscall"
	"unicode/utf8"

	"sandman.dev/daemon/internal/problem"
)

// pathText is the text of a name, with U+FFFD where it is no UTF-8, and then its exact bytes in base64.
func pathText(path string) (text, b64 string) {
	if utf8.ValidString(path) {
		return path, ""
	}
	return strings.ToValidUTF8(path, "\uFFFD"), base64.StdEncoding.EncodeToString([]byte(path))
}

// checkPath refuses what can be no path at all; everything else is the kernel's to judge.
func checkPath(field, path string) error {
	switch {
	case path == "":
		return problem.Invalid(field, "is empty or missing")
	case strings.ContainsRune(path, 0):
		return problem.Invalid(field, "holds a NUL byte")
	}
	return nil
}

// absolute joins, and drops empty and "." components, which mean nothing. It never drops "..": "link/.." is
// where the link leads, not where it lies. A slash at the end stays: it says that a directory is meant.
func absolute(dir, path string) string {
	if !strings.HasPrefix(path, "/") {
		path = dir + "/" + path
	}
	if !strings.Contains(path, "//") && !strings.Contains(path, "/.") {
		return path
	}
	var kept strings.Builder
	last := ""
	for part := range strings.SplitSeq(path, "/") {
		if last = part; part != "" && part != "." {
			kept.WriteString("/" + part)
		}
	}
	if kept.Len() == 0 || last == "" || last == "." {
		kept.WriteByte('/')
	}
	return kept.String()
}

// splitLast cuts the last component off: its folder, to be resolved by the kernel, and its name.
// The name is "" for a path that can only name a directory ("/", "a/", "a/.", "a/..").
func splitLast(path string) (dir, name string) {
	cut := strings.LastIndexByte(path, '/')
	dir, name = path[:cut+1], path[cut+1:]
	if name == "." || name == ".." {
		return path, ""
	}
	if dir == "" {
		dir = "."
	}
	return dir, name
}

// trimSlashes makes "a//" name what "a" names, for calls that work on the entry itself.
func trimSlashes(path string) string {
	if trimmed := strings.TrimRight(path, "/"); trimmed != "" {
		return trimmed
	}
	return "/"
}

func typeName(mode uint32) string {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return "file"
	case syscall.S_IFDIR:
		return "directory"
	case syscall.S_IFLNK:
		return "symlink"
	case syscall.S_IFIFO:
		return "fifo"
	case syscall.S_IFSOCK:
		return "socket"
	case syscall.S_IFCHR:
		return "char_device"
	case syscall.S_IFBLK:
		return "block_device"
	}
	return "unknown"
}

func isType(st syscall.Stat_t, kind uint32) bool { return uint32(st.Mode)&syscall.S_IFMT == kind }
