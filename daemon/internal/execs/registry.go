package execs

import (
	"container/list"
	"hash/maphash"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"sandman.dev/daemon/internal/config"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/proc"
	"sandman.dev/daemon/internal/spool"
)

// rememberedIDs of dropped execs are kept, so that a late repeat is told "expired" and never runs a second time.
const rememberedIDs = 1 << 16

// SessionHost runs commands in persistent shells.
type SessionHost interface {
	// Submit takes the exec over: it calls Begin and Complete, or Refuse. It does not block.
	Submit(e *Exec)
}

// Registry holds every exec of the sandbox.
type Registry struct {
	Sessions SessionHost

	config       *config.Config
	environ      *Environ
	own          *proc.Identity
	shell        string
	spoolOptions spool.Options
	budget       *spool.Budget
	prefix       string

	mu       sync.Mutex
	byID     map[string]*Exec
	all      *list.List // of *Exec, oldest first
	past     *list.List // of *Exec that have ended, the first to go first
	running  int
	probes   int // of those that run
	sequence int64
	seed     maphash.Seed
	dropped  map[uint64]struct{}
	droppedQ []uint64
}

// Self is where the daemon's program lies in the sandbox: the service runs "Self noop" to prove the sandbox usable.
var Self = func() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0] // without /proc
	}
	return path
}()

// isProbe tells the service's own proof that commands run from a command of a caller's, who would wonder what it is.
func isProbe(argv []string) bool { return len(argv) == 2 && argv[0] == Self && argv[1] == "noop" }

// NewRegistry returns an empty registry.
func NewRegistry(c *config.Config) *Registry {
	own := proc.Own()
	r := &Registry{
		config: c, environ: NewEnviron(c), own: &own, shell: c.Shell,
		byID: map[string]*Exec{}, all: list.New(), past: list.New(),
		seed: maphash.MakeSeed(), dropped: map[uint64]struct{}{},
		prefix: "e" + strconv.FormatUint(proc.NewTag()>>32&(1<<30-1), 36) + "-",
	}
	r.budget = &spool.Budget{MemBytes: c.MemoryBytes, DiskBytes: c.SpoolTotalBytes, Reclaim: r.reclaim}
	r.spoolOptions = spool.Options{
		Dir: c.SpoolDir, DiskBytes: c.SpoolBytes, MemBytes: min(c.SpoolBytes, c.MemoryBytes/8), Budget: r.budget,
	}
	return r
}

// Environ returns the base environment.
func (r *Registry) Environ() *Environ { return r.environ }

// Config returns the daemon's settings.
func (r *Registry) Config() *config.Config { return r.config }

// Start runs the command, or attaches to the exec that has its id already. A failure to start is in the exec's
// outcome; an error means that there is no exec.
func (r *Registry) Start(spec *Spec) (e *Exec, attached bool, err error) {
	e = &Exec{ID: spec.ID, Spec: spec.Record(), request: spec, Created: time.Now(), registry: r, done: make(chan struct{})}
	e.Stdout, e.Stderr = NewOutput(r.spoolOptions), NewOutput(r.spoolOptions)
	if spec.StdinMode != StdinNone || spec.PTY != nil {
		e.Input = newStdin()
	}
	if spec.ID != "" {
		e.print = spec.Fingerprint()
	}
	r.mu.Lock()
	if spec.ID != "" {
		if old, ok := r.byID[spec.ID]; ok {
			r.mu.Unlock()
			if old.print != e.print {
				return nil, false, &problem.Problem{Slug: "exec-id-conflict", Title: "The exec id belongs to another command",
					Status: http.StatusConflict, Detail: "the same id was used with a different request"}
			}
			return old, true, nil
		}
		if _, gone := r.dropped[r.hash(spec.ID)]; gone {
			r.mu.Unlock()
			return nil, false, expired()
		}
	}
	if r.running >= r.config.MaxRunning {
		r.mu.Unlock()
		return nil, false, &problem.Problem{Slug: "too-many-execs", Title: "Too many commands run at once",
			Status: http.StatusTooManyRequests, Detail: "the bound is " + strconv.Itoa(r.config.MaxRunning), Retryable: true}
	}
	r.running++
	if e.probe = spec.ID == "" && isProbe(spec.Argv); e.probe {
		r.probes++
	}
	r.sequence++
	e.Sequence = r.sequence
	if e.ID == "" {
		e.ID = r.prefix + strconv.FormatInt(r.sequence, 10)
	}
	r.byID[e.ID] = e
	r.all.PushBack(e)
	r.mu.Unlock()

	if spec.Session != "" {
		r.Sessions.Submit(e)
		return e, false, nil
	}
	if err := e.launch(spec); err != nil {
		e.fail(err)
	}
	e.Served()
	return e, false, nil
}

func expired() *problem.Problem {
	return &problem.Problem{Slug: "exec-expired", Title: "The exec's record is no longer kept", Status: http.StatusGone,
		Detail: "it ran, and its result was dropped to keep to the bound on records"}
}

// Get returns an exec by its id.
func (r *Registry) Get(id string) (*Exec, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byID[id]; ok {
		return e, nil
	}
	if _, gone := r.dropped[r.hash(id)]; gone {
		return nil, expired()
	}
	return nil, &problem.Problem{Slug: "exec-not-found", Title: "No such exec", Status: http.StatusNotFound}
}

// List returns execs, oldest first, without the service's probes.
func (r *Registry) List() []*Exec {
	r.mu.Lock()
	defer r.mu.Unlock()
	items := make([]*Exec, 0, r.all.Len())
	for at := r.all.Front(); at != nil; at = at.Next() {
		if e := at.Value.(*Exec); !e.probe {
			items = append(items, e)
		}
	}
	return items
}

// Counts returns how many execs run and how many records are kept, probes not among them.
func (r *Registry) Counts() (running, kept int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running - r.probes, len(r.byID) - r.probes
}

func (r *Registry) ended(e *Exec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	if e.probe { // nobody asks for it again
		r.probes--
		r.remove(e)
		return
	}
	r.past.PushBack(e)
	for r.past.Len() > r.config.MaxExecs {
		r.drop(r.past.Front())
	}
}

// drop forgets the record; the caller holds the lock.
func (r *Registry) drop(at *list.Element) {
	old := r.past.Remove(at).(*Exec)
	r.remove(old)
	hash := r.hash(old.ID)
	r.dropped[hash] = struct{}{}
	r.droppedQ = append(r.droppedQ, hash)
	if len(r.droppedQ) > rememberedIDs {
		delete(r.dropped, r.droppedQ[0])
		r.droppedQ = r.droppedQ[1:]
	}
}

// remove takes the record out of what can be found; the caller holds the lock.
func (r *Registry) remove(old *Exec) {
	delete(r.byID, old.ID)
	for any := r.all.Front(); any != nil; any = any.Next() { // close to the front: the oldest go first
		if any.Value.(*Exec) == old {
			r.all.Remove(any)
			break
		}
	}
	old.Stdout.Release()
	old.Stderr.Release()
}

func (r *Registry) hash(id string) uint64 { return maphash.String(r.seed, id) }

// shrunkBytes is what a running command's streams keep when even they together pass the common bound.
const shrunkBytes = 64 << 10

// reclaim brings the spools under their common bound: the oldest ended execs give their bytes up first.
func (r *Registry) reclaim() {
	r.mu.Lock()
	var past, live []*Exec
	for at := r.past.Front(); at != nil; at = at.Next() {
		past = append(past, at.Value.(*Exec))
	}
	for at := r.all.Front(); at != nil; at = at.Next() {
		if e := at.Value.(*Exec); !e.Ended() {
			live = append(live, e)
		}
	}
	r.mu.Unlock()
	for _, e := range past {
		if !r.budget.Over() {
			return
		}
		e.Stdout.Release()
		e.Stderr.Release()
	}
	for _, e := range live {
		if !r.budget.Over() {
			return
		}
		e.Stdout.Spool.Shrink(shrunkBytes)
		e.Stderr.Spool.Shrink(shrunkBytes)
	}
}
