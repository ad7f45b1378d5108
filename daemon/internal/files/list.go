package files

// Stat and list. A listing is a walk in name order, cut into pages by a cursor that names the last entry
// told; so entries that come and go between pages neither repeat nor hide the others.

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/problem"
)

const (
	listLimitDefault = 1000
	listLimitMax     = 10_000
	// pageTime ends a page early, with a cursor: a caller's own time-out must not be what ends it.
	pageTime = 5 * time.Second
)

var errPageFull = errors.New("the page is full")

func (h *Handler) stat(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.RawQuery, "path", "user", "follow")
	if err != nil {
		return err
	}
	path, err := q.path("path")
	if err != nil {
		return err
	}
	follow, err := q.flag("follow", false)
	if err != nil {
		return err
	}
	as, err := h.rightsOf(q["user"])
	if err != nil {
		return err
	}
	full := absolute(h.options.DefaultDir, path)
	var entry Entry
	err = as.do(func() error {
		flags := atSymlinkNofollow
		if follow {
			flags = 0
		}
		st, err := statat(atFDCWD, full, flags)
		if err != nil {
			return err
		}
		trimmed := trimSlashes(full)
		entry = newEntry(trimmed, trimmed[strings.LastIndexByte(trimmed, '/')+1:], st)
		entry.withTarget(atFDCWD, full)
		return nil
	})
	if err != nil {
		return failed(err, full)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(entry)
	return nil
}

// listing is one page being written.
type listing struct {
	ctx      context.Context
	out      *bufio.Writer
	base     string // path of the listed directory, ending in "/"
	depth    int
	limit    int
	told     int
	last     string // relative path of the last entry told, or of the one that the cursor named
	deadline time.Time
}

func (h *Handler) list(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.RawQuery, "path", "user", "depth", "limit", "cursor")
	if err != nil {
		return err
	}
	path, err := q.path("path")
	if err != nil {
		return err
	}
	depth, depthErr := q.number("depth", 1, 1, maxDepth)
	limit, limitErr := q.number("limit", listLimitDefault, 1, listLimitMax)
	resume, cursorErr := parseCursor(q["cursor"])
	if err := errors.Join(depthErr, limitErr, cursorErr); err != nil {
		return err
	}
	as, err := h.rightsOf(q["user"])
	if err != nil {
		return err
	}
	full := absolute(h.options.DefaultDir, path)
	page := &listing{
		ctx: r.Context(), out: bufio.NewWriterSize(w, 64<<10), base: strings.TrimRight(full, "/") + "/",
		depth: depth, limit: limit, last: strings.Join(resume, "/"), deadline: time.Now().Add(pageTime),
	}
	begun := false
	err = as.do(func() error {
		fd, err := openDirectory(atFDCWD, full, 0)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		begun = true
		w.Header().Set("Content-Type", "application/json")
		page.begin(trimSlashes(full))
		return page.walk(fd, "", 1, resume)
	})
	if !begun {
		return failed(err, full)
	}
	if err != nil && err != errPageFull {
		panic(http.ErrAbortHandler) // the directory cannot be read on: a shorter list would be a lie
	}
	page.end(err == errPageFull)
	return nil
}

func (l *listing) begin(path string) {
	text, b64 := pathText(path)
	head, _ := json.Marshal(struct {
		Path    string `json:"path"`
		PathB64 string `json:"path_b64,omitempty"`
	}{text, b64})
	_, _ = l.out.Write(head[:len(head)-1])
	_, _ = l.out.WriteString(`,"items":[`)
}

func (l *listing) end(truncated bool) {
	next := []byte("null")
	if truncated {
		next, _ = json.Marshal(base64.RawURLEncoding.EncodeToString([]byte(l.last)))
	}
	_, _ = l.out.WriteString("]" + `,"next":` + string(next) + `,"truncated":` + map[bool]string{true: "true", false: "false"}[truncated] + "}\n")
	_ = l.out.Flush()
}

// walk tells the entries of one directory, each before what is in it, from where resume says.
func (l *listing) walk(fd int, prefix string, level int, resume []string) error {
	after := ""
	if len(resume) > 0 {
		after = resume[0]
		if level < l.depth {
			if child, err := openDirectory(fd, after, syscall.O_NOFOLLOW); err == nil {
				err = l.walk(child, prefix+after+"/", level+1, resume[1:])
				_ = syscall.Close(child)
				var errno syscall.Errno
				if err != nil && !errors.As(err, &errno) { // an errno: it has become unreadable since it was told
					return err
				}
			}
		}
	}
	first, err := l.open(fd, after)
	if err != nil {
		return err
	}
	return l.entries(fd, prefix, level, first)
}

// batch is the first part of a directory's names.
type batch struct {
	names []string
	more  bool
}

func (l *listing) open(fd int, after string) (batch, error) {
	names, more, err := namesAfter(fd, after, min(l.limit+1, batchNames))
	return batch{names, more}, err
}

func (l *listing) entries(fd int, prefix string, level int, first batch) error {
	return eachNameFrom(fd, first.names, first.more, min(l.limit+1, batchNames), func(name string) error {
		st, err := statat(fd, name, atSymlinkNofollow)
		if errors.Is(err, syscall.ENOENT) {
			return nil // it vanished meanwhile
		}
		if l.told == l.limit || (l.told > 0 && time.Now().After(l.deadline)) {
			return errPageFull
		}
		path := prefix + name
		entry := newEntry(l.base+path, name, st)
		entry.withTarget(fd, name)
		if err != nil { // a directory that may be read but not searched, a dead FUSE mount: only the name is known
			entry.Type, entry.Error = "unknown", errnoName(err)
		}
		var inside batch
		child := -1
		if entry.Type == "directory" && level < l.depth { // read before it is told: the entry carries the error
			if child, err = openDirectory(fd, name, syscall.O_NOFOLLOW); err == nil {
				defer syscall.Close(child)
				inside, err = l.open(child, "")
			}
			entry.Error = errnoName(err)
		}
		if err := l.tell(entry, path); err != nil || len(inside.names) == 0 {
			return err
		}
		return l.entries(child, path+"/", level+1, inside)
	})
}

func (l *listing) tell(entry Entry, path string) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	text, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	if l.told > 0 {
		_ = l.out.WriteByte(',')
	}
	l.told++
	l.last = path
	_, err = l.out.Write(text)
	return err
}

// parseCursor reads what end wrote: a relative path. It can name nothing outside the listed directory.
func parseCursor(cursor string) ([]string, error) {
	if cursor == "" {
		return nil, nil
	}
	path, err := base64.RawURLEncoding.DecodeString(cursor)
	parts := strings.Split(string(path), "/")
	for _, part := range parts {
		if part == "" || part == "." || part == ".." || strings.ContainsRune(part, 0) {
			err = errors.New("no such cursor")
		}
	}
	if err != nil || len(parts) > maxDepth {
		return nil, problem.Invalid("cursor", "is none that a list returned")
	}
	return parts, nil
}
