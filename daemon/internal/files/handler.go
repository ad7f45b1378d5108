// Package files serves the sandbox's files over HTTP: get, put, list, stat, move, mkdir, link, remove,
// watch, and whole folders as tar streams. Its wire contract is the section "Files" of PROTOCOL.md.
//
// Every path is resolved by the kernel under the rights of the user that a request works for, never
// checked first and opened later: what that user may not do, the daemon does not do for them, and no
// race with a process in the sandbox can widen it.
package files

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"sandman.dev/daemon/internal/problem"
)

// Identity is who the file work is done as.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}

// Options configures New; the zero value serves as the daemon's own user, relative to "/".
type Options struct {
	// DefaultDir is what relative paths are relative to; absolute. Empty: "/".
	DefaultDir string
	// User is the default for the `user` parameter, in any form that Lookup takes. Empty: the daemon's own.
	User string
	// Lookup resolves a user name or "uid[:gid]". Nil: numbers only. A *problem.Problem it returns is
	// passed on to the caller; any other error becomes a 422 naming the field "user".
	Lookup func(user string) (Identity, error)
	// MaxFileBytes bounds one uploaded file or archive member. 0: no bound but the disk's.
	MaxFileBytes int64
	// MaxArchiveBytes bounds what one uploaded archive may unpack to. 0: no bound but the disk's.
	MaxArchiveBytes int64
	// StagingDirs are tried in order for an upload that cannot be staged beside its target (a file
	// mounted into a read-only folder). Empty: /tmp, /dev/shm.
	StagingDirs []string
	// BodyIdleTimeout ends an upload that sends nothing for so long. 0: 2 minutes, which is longer than
	// any pause of a client that is alive, and short enough that dead ones do not pile up.
	BodyIdleTimeout time.Duration
	// HeartbeatInterval is the longest silence on a watch. 0: 15 s.
	HeartbeatInterval time.Duration

	// What the kernel may lack, for tests to take away.
	withoutTmpfile, withoutOpenat2 bool
}

// Handler answers the paths under /v1/files and /v1/archive; authentication is its caller's job.
type Handler struct {
	options Options
}

// New returns the handler; it starts nothing and holds nothing open between requests.
func New(options Options) *Handler {
	if options.DefaultDir == "" {
		options.DefaultDir = "/"
	}
	if options.StagingDirs == nil {
		options.StagingDirs = []string{"/tmp", "/dev/shm"}
	}
	if options.BodyIdleTimeout == 0 {
		options.BodyIdleTimeout = 2 * time.Minute
	}
	if options.HeartbeatInterval == 0 {
		options.HeartbeatInterval = 15 * time.Second
	}
	options.withoutTmpfile = options.withoutTmpfile || !hasProcFD()
	options.withoutOpenat2 = options.withoutOpenat2 || !hasOpenat2()
	return &Handler{options: options}
}

type call func(w http.ResponseWriter, r *http.Request) error

// calls are all there are; each method of a path is one function.
func (h *Handler) calls(path string) map[string]call {
	switch path {
	case "/v1/files":
		return map[string]call{"GET": h.get, "HEAD": h.get, "PUT": h.put, "DELETE": h.remove}
	case "/v1/files/stat":
		return map[string]call{"GET": h.stat}
	case "/v1/files/list":
		return map[string]call{"GET": h.list}
	case "/v1/files/watch":
		return map[string]call{"GET": h.watch}
	case "/v1/files/move":
		return map[string]call{"POST": h.move}
	case "/v1/files/mkdir":
		return map[string]call{"POST": h.mkdir}
	case "/v1/files/link":
		return map[string]call{"POST": h.link}
	case "/v1/archive":
		return map[string]call{"GET": h.pack, "PUT": h.unpack}
	}
	return nil
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	methods := h.calls(r.URL.Path)
	if methods == nil {
		problem.Write(w, &problem.Problem{
			Slug: "not-found", Title: "No such call", Status: http.StatusNotFound, Detail: r.URL.Path,
		})
		return
	}
	work, known := methods[r.Method]
	if !known {
		w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		problem.Write(w, &problem.Problem{
			Slug: "method-not-allowed", Title: "Not with this method", Status: http.StatusMethodNotAllowed, Detail: r.Method,
		})
		return
	}
	if err := work(w, r); err != nil {
		problem.Write(w, err)
	}
}
