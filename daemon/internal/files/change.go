package files

// The calls that change names: delete, move, mkdir, link. Each is one system call at its heart, with its
// errno told; none checks first what that call decides.

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"syscall"

	"sandman.dev/daemon/internal/problem"
)

func (h *Handler) remove(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.RawQuery, "path", "user", "recursive", "missing_ok")
	if err != nil {
		return err
	}
	path, err := q.path("path")
	if err != nil {
		return err
	}
	recursive, recursiveErr := q.flag("recursive", false)
	missingOK, missingErr := q.flag("missing_ok", false)
	if err := errors.Join(recursiveErr, missingErr); err != nil {
		return err
	}
	as, err := h.rightsOf(q["user"])
	if err != nil {
		return err
	}
	full := trimSlashes(absolute(h.options.DefaultDir, path))
	if _, name := splitLast("/" + trimSlashes(path)); name == "" { // as rm: no call can mean to delete where it stands
		return problem.Invalid("path", `must name an entry; it ends in "/", "." or ".."`)
	}
	err = as.do(func() error {
		st, err := statat(atFDCWD, full, atSymlinkNofollow)
		if err != nil {
			return err
		}
		if !isType(st, syscall.S_IFDIR) {
			return unlinkat(atFDCWD, full, 0)
		}
		if !recursive {
			return withPath(&problem.Problem{
				Slug: "is-a-directory", Title: "That is a directory", Status: http.StatusConflict,
				Detail: "recursive=true deletes it with all it holds",
			}, full).With("errno", "EISDIR")
		}
		return os.RemoveAll(full)
	})
	if err != nil && !(missingOK && errors.Is(err, syscall.ENOENT)) {
		return failed(err, full)
	}
	text, b64 := pathText(full)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct {
		Path    string `json:"path"`
		PathB64 string `json:"path_b64,omitempty"`
		Deleted bool   `json:"deleted"` // false: it was missing, and that was fine
	}{text, b64, err == nil})
	return nil
}

func (h *Handler) move(w http.ResponseWriter, r *http.Request) error {
	request, err := readJSON(r, "from", "from_b64", "to", "to_b64", "overwrite", "parents", "user")
	if err != nil {
		return err
	}
	from, err := request.path("from")
	if err != nil {
		return err
	}
	to, err := request.path("to")
	if err != nil {
		return err
	}
	overwrite, overwriteErr := request.flag("overwrite", false)
	parents, parentsErr := request.flag("parents", true)
	as, rightsErr := h.rightsIn(request)
	if err := errors.Join(overwriteErr, parentsErr, rightsErr); err != nil {
		return err
	}
	from = trimSlashes(absolute(h.options.DefaultDir, from))
	to = trimSlashes(absolute(h.options.DefaultDir, to))
	blamed := from
	r.Context().Done() // a move between file systems stops when its caller goes away
	var entry Entry
	err = as.do(func() error {
		st, err := statat(atFDCWD, from, atSymlinkNofollow)
		if err != nil {
			return err
		}
		blamed = to
		place, err := newPlace(to, parents)
		if err != nil {
			return err
		}
		defer place.close()
		flags := renameNoReplace
		if overwrite {
			flags = 0
		}
		err = renameat2(atFDCWD, from, place.dir, place.name, flags)
		if errors.Is(err, syscall.EINVAL) && flags != 0 { // a file system without that flag, or into itself
			if _, statErr := statat(place.dir, place.name, atSymlinkNofollow); statErr == nil {
				return syscall.EEXIST
			}
			err = renameat2(atFDCWD, from, place.dir, place.name, 0)
		}
		if errors.Is(err, syscall.EXDEV) {
			err = moveAcross(r.Context(), from, place, overwrite)
		}
		if err != nil {
			return err
		}
		if now, statErr := statat(place.dir, place.name, atSymlinkNofollow); statErr == nil {
			st = now
		}
		entry = newEntry(to, place.name, st)
		entry.withTarget(place.dir, place.name)
		return nil
	})
	if err != nil {
		return failed(err, blamed)
	}
	return answerEntry(w, entry, false)
}

// newPlace is where an entry will be made: a name in a folder, with the folders on the way made if asked.
func newPlace(path string, parents bool) (*target, error) {
	folder, name := splitLast(path)
	if name == "" {
		return nil, syscall.EEXIST
	}
	dir, missing, err := openFolder(folder, parents)
	if err != nil {
		return nil, err
	}
	place := &target{path: path, dir: dir, missing: missing, name: name}
	if err := place.makeMissing(nil); err != nil {
		place.close()
		return nil, err
	}
	return place, nil
}

// mkdir with parents (the default) is idempotent, as mkdir -p is.
func (h *Handler) mkdir(w http.ResponseWriter, r *http.Request) error {
	request, err := readJSON(r, "path", "path_b64", "mode", "parents", "user")
	if err != nil {
		return err
	}
	path, err := request.path("path")
	if err != nil {
		return err
	}
	mode := uint32(0o755)
	if text, err := request.text("mode"); err != nil {
		return err
	} else if request.given("mode") {
		if mode, err = parseMode("mode", text); err != nil {
			return err
		}
	}
	parents, parentsErr := request.flag("parents", true)
	as, rightsErr := h.rightsIn(request)
	if err := errors.Join(parentsErr, rightsErr); err != nil {
		return err
	}
	full := trimSlashes(absolute(h.options.DefaultDir, path))
	var entry Entry
	created := false
	err = as.do(func() error {
		st, err := statat(atFDCWD, full, 0)
		if err == nil && parents && isType(st, syscall.S_IFDIR) {
			entry = newEntry(full, full[strings.LastIndexByte(full, '/')+1:], st)
			return nil
		}
		place, err := newPlace(full, parents)
		if err != nil {
			return err
		}
		defer place.close()
		err = mkdirat(place.dir, place.name, 0o700)
		if err == nil {
			created = true
			var fd int
			if fd, err = openDirectory(place.dir, place.name, syscall.O_NOFOLLOW); err == nil {
				err = keepSetgid(fd, mode)
				_ = syscall.Close(fd)
			}
		}
		if err != nil && !(parents && errors.Is(err, syscall.EEXIST)) {
			return err
		}
		if st, err = statat(place.dir, place.name, 0); err == nil && !isType(st, syscall.S_IFDIR) {
			err = syscall.EEXIST
		}
		entry = newEntry(full, place.name, st)
		return err
	})
	if err != nil {
		return failed(err, full)
	}
	return answerEntry(w, entry, created)
}

// link makes a symbolic link (its target is text, kept as it is) or a hard one (its target is a path).
func (h *Handler) link(w http.ResponseWriter, r *http.Request) error {
	request, err := readJSON(r, "target", "target_b64", "path", "path_b64", "symbolic", "overwrite", "parents", "user")
	if err != nil {
		return err
	}
	linked, err := request.path("target")
	if err != nil {
		return err
	}
	path, err := request.path("path")
	if err != nil {
		return err
	}
	symbolic, symbolicErr := request.flag("symbolic", true)
	overwrite, overwriteErr := request.flag("overwrite", false)
	parents, parentsErr := request.flag("parents", true)
	as, rightsErr := h.rightsIn(request)
	if err := errors.Join(symbolicErr, overwriteErr, parentsErr, rightsErr); err != nil {
		return err
	}
	full := trimSlashes(absolute(h.options.DefaultDir, path))
	var entry Entry
	err = as.do(func() error {
		place, err := newPlace(full, parents)
		if err != nil {
			return err
		}
		defer place.close()
		makeAt := func(name string) error {
			if symbolic {
				return symlinkat(linked, place.dir, name)
			}
			return linkat(atFDCWD, absolute(h.options.DefaultDir, linked), place.dir, name, 0)
		}
		err = makeAt(place.name)
		if errors.Is(err, syscall.EEXIST) && overwrite {
			err = replaceBy(place.dir, place.name, makeAt)
		}
		if err != nil {
			return err
		}
		st, err := statat(place.dir, place.name, atSymlinkNofollow)
		if err != nil {
			return err
		}
		entry = newEntry(full, place.name, st)
		entry.withTarget(place.dir, place.name)
		return nil
	})
	if err != nil {
		return failed(err, full)
	}
	return answerEntry(w, entry, true)
}

// replaceBy makes something under another name and renames it over the old one, so that the name is never
// missing in between.
func replaceBy(dir int, name string, makeAt func(name string) error) error {
	temporary := temporaryName()
	if err := makeAt(temporary); err != nil {
		return err
	}
	err := renameat2(dir, temporary, dir, name, 0)
	// Between two names of one file rename does nothing and succeeds: the temporary name is still there.
	_ = unlinkat(dir, temporary, 0)
	return err
}

func (h *Handler) rightsIn(request members) (*rights, error) {
	user, err := request.text("user")
	if err != nil {
		return nil, err
	}
	return h.rightsOf(user)
}
