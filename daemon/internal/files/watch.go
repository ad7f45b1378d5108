package files

// Watching a file or folder: a stream of JSON lines. The kernel is always read at once and the caller is
// written to when it reads; between them lies a bounded queue. When it overflows the caller is told that
// events are missing: then a new listing is the truth, and silence never is.

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/problem"
)

// queuedEvents between kernel and caller: one unpacked archive's burst; some 1 MiB at worst.
const queuedEvents = 4096

type watchEvent struct {
	Event   string `json:"event"`
	Path    string `json:"path,omitempty"`
	PathB64 string `json:"path_b64,omitempty"`
	Folder  bool   `json:"directory,omitempty"`
	Cookie  uint32 `json:"cookie,omitempty"` // joins moved_from with moved_to
	Reason  string `json:"reason,omitempty"`
}

type watching struct {
	*inotify
	as    *rights
	queue chan watchEvent
	lost  atomic.Bool
}

func (h *Handler) watch(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.RawQuery, "path", "user", "recursive")
	if err != nil {
		return err
	}
	path, err := q.path("path")
	if err != nil {
		return err
	}
	recursive, err := q.flag("recursive", false)
	if err != nil {
		return err
	}
	as, err := h.rightsOf(q["user"])
	if err != nil {
		return err
	}
	full := trimSlashes(absolute(h.options.DefaultDir, path))
	kernel, err := newInotify(full, recursive)
	if err != nil {
		return watchFailed(err, full)
	}
	if err := as.do(func() error { return kernel.add(full, 0, nil) }); err != nil {
		kernel.close()
		return watchFailed(err, full)
	}
	watched := &watching{inotify: kernel, as: as, queue: make(chan watchEvent, queuedEvents)}
	watched.tell(watchEvent{Event: "watching", Path: full})
	go watched.read()
	defer watched.end()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w).Flush
	heartbeat := time.NewTicker(h.options.HeartbeatInterval)
	defer heartbeat.Stop()
	for {
		select {
		case <-r.Context().Done():
			return nil
		case <-heartbeat.C:
			err = out.Encode(watchEvent{Event: "heartbeat"})
		case event, more := <-watched.queue:
			if !more {
				return nil
			}
			err = out.Encode(event)
			for range len(watched.queue) { // what is there goes out in one write
				if event, more = <-watched.queue; err == nil && more {
					err = out.Encode(event)
				}
			}
			if watched.lost.Swap(false) && err == nil {
				err = out.Encode(watchEvent{Event: "overflow", Reason: "queue"})
			}
		}
		if err != nil || flush() != nil {
			return nil // the caller is gone
		}
	}
}

func watchFailed(err error, path string) error {
	if errors.Is(err, errWatchLimit) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EMFILE) {
		return withPath(&problem.Problem{
			Slug: "watch-limit", Title: "Too much to watch", Status: http.StatusConflict, Cause: problem.Task,
			Detail: "the bound of one watch, or of the kernel for all watches of a user, is reached",
		}, path).With("limit", maxWatches)
	}
	return failed(err, path)
}

// end waits for the reader: a descriptor closed under it could be another file's already.
func (w *watching) end() {
	_ = w.file.SetReadDeadline(time.Unix(1, 0))
	for range w.queue {
	}
	w.close()
}

// read ends when its time is over or the watched thing itself is gone; then it closes the queue.
func (w *watching) read() {
	defer close(w.queue)
	buffer := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buffer)
		if err != nil {
			return
		}
		ended := false
		_ = w.as.do(func() error { // new folders are watched with the caller's rights
			for _, event := range parseEvents(buffer[:n]) {
				ended = w.handle(event) || ended
			}
			return nil
		})
		if ended {
			return
		}
	}
}

// handle tells one event and keeps the watches true; true when there is nothing left to watch.
func (w *watching) handle(raw rawEvent) bool {
	if raw.mask&syscall.IN_Q_OVERFLOW != 0 {
		w.tell(watchEvent{Event: "overflow", Reason: "kernel"})
		if w.recursive { // folders may have come unnoticed; watching one twice is the same as once
			w.follow(w.root, nil)
		}
		return false
	}
	folder, known := w.paths[raw.wd]
	if !known {
		return false
	}
	path := folder
	if raw.name != "" {
		path = strings.TrimRight(folder, "/") + "/" + raw.name
	}
	isFolder := raw.mask&syscall.IN_ISDIR != 0
	switch {
	case raw.mask&syscall.IN_IGNORED != 0:
		delete(w.paths, raw.wd)
		if folder == w.root {
			w.tell(watchEvent{Event: "gone", Path: folder})
			return true
		}
		return false
	case raw.mask&(syscall.IN_DELETE_SELF|syscall.IN_MOVE_SELF) != 0:
		if folder == w.root && raw.mask&syscall.IN_MOVE_SELF != 0 {
			w.tell(watchEvent{Event: "gone", Path: folder})
			return true
		}
		return false // the folder above tells it; the end of the root comes with IN_IGNORED
	}
	for _, kind := range eventKinds {
		if raw.mask&kind.bit != 0 {
			w.tell(watchEvent{Event: kind.word, Path: path, Folder: isFolder, Cookie: raw.cookie})
		}
	}
	if !isFolder || !w.recursive || raw.name == "" {
		return false
	}
	switch {
	case raw.mask&syscall.IN_CREATE != 0:
		w.follow(path, func(path string, folder bool) {
			w.tell(watchEvent{Event: "created", Path: path, Folder: folder})
		})
	case raw.mask&syscall.IN_MOVED_TO != 0:
		w.follow(path, nil)
	case raw.mask&syscall.IN_MOVED_FROM != 0:
		w.forget(path)
	}
	return false
}

var eventKinds = []struct {
	bit  uint32
	word string
}{
	{syscall.IN_CREATE, "created"}, {syscall.IN_MODIFY, "modified"}, {syscall.IN_CLOSE_WRITE, "written"},
	{syscall.IN_ATTRIB, "attributes"}, {syscall.IN_DELETE, "deleted"}, {syscall.IN_MOVED_FROM, "moved_from"},
	{syscall.IN_MOVED_TO, "moved_to"},
}

func (w *watching) follow(path string, found func(path string, folder bool)) {
	level := 1
	if path == w.root {
		level = 0
	}
	if err := w.add(path, level, found); errors.Is(err, errWatchLimit) || errors.Is(err, syscall.ENOSPC) {
		w.tell(watchEvent{Event: "overflow", Path: path, Reason: "watch-limit"})
	}
}

func (w *watching) tell(event watchEvent) {
	event.Path, event.PathB64 = pathText(event.Path)
	select {
	case w.queue <- event:
	default:
		w.lost.Store(true) // the writer has 4096 events before it and looks after them
	}
}
