package files

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// events reads a watch line by line until the test ends.
func (s *service) events(pairs ...string) <-chan map[string]any {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	request, _ := http.NewRequestWithContext(ctx, "GET", s.url+"/v1/files/watch?"+q(pairs...).Encode(), nil)
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != 200 {
		s.Fatal(response, err)
	}
	s.Cleanup(func() { cancel(); response.Body.Close() })
	lines := make(chan map[string]any, 100)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(response.Body)
		for scanner.Scan() {
			var event map[string]any
			if json.Unmarshal(scanner.Bytes(), &event) == nil {
				lines <- event
			}
		}
	}()
	if first := <-lines; first["event"] != "watching" {
		s.Fatalf("first %v", first)
	}
	return lines
}

func (s *service) expect(lines <-chan map[string]any, event, path string) map[string]any {
	s.Helper()
	late := time.After(10 * time.Second)
	var seen []string
	for {
		select {
		case got, more := <-lines:
			if !more {
				s.Fatalf("ended without %s %s; saw %q", event, path, seen)
			}
			if got["event"] == event && (path == "" || exact(got, "path") == path) {
				return got
			}
			seen = append(seen, fmt.Sprint(got))
		case <-late:
			s.Fatalf("no %s %s; saw %q", event, path, seen)
		}
	}
}

func TestWatchTellsWhatHappens(t *testing.T) {
	s := start(t)
	s.put("old/f", "x")
	lines := s.events("path", ".", "recursive", "true")
	for _, name := range []string{"a b", "a\nb", "\xff"} {
		s.write(name, "x", 0o600)
		s.expect(lines, "created", s.at(name))
		s.expect(lines, "written", s.at(name))
	}
	s.put("old/f", "atomic")
	s.expect(lines, "moved_to", s.at("old", "f"))
	if err := os.MkdirAll(s.at("new", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.write("new/deep/f", "x", 0o644)
	if got := s.expect(lines, "created", s.at("new", "deep")); got["directory"] != true {
		t.Errorf("%v", got)
	}
	s.expect(lines, "created", s.at("new", "deep", "f"))
	if err := os.Rename(s.at("new"), s.at("renamed")); err != nil {
		t.Fatal(err)
	}
	from, to := s.expect(lines, "moved_from", s.at("new")), s.expect(lines, "moved_to", s.at("renamed"))
	if from["cookie"] != to["cookie"] || from["cookie"] == nil {
		t.Errorf("%v %v", from, to)
	}
	s.write("renamed/deep/g", "x", 0o644)
	s.expect(lines, "created", s.at("renamed", "deep", "g"))
	if err := os.RemoveAll(s.at("renamed")); err != nil {
		t.Fatal(err)
	}
	s.expect(lines, "deleted", s.at("renamed"))
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	s.expect(lines, "gone", s.dir)
	for range lines { // and it ends
	}
}

func TestWatchOfAFileAndHeartbeats(t *testing.T) {
	s := start(t, func(o *Options) { o.HeartbeatInterval = 30 * time.Millisecond })
	s.put("f", "x")
	lines := s.events("path", "f")
	s.expect(lines, "heartbeat", "")
	s.write("f", "y", 0o644)
	s.expect(lines, "written", s.at("f"))
	s.refused(404, "not-found", "GET", "/v1/files/watch", q("path", "missing"), "")
}

func TestB069WatchesNeedTheUsersRights(t *testing.T) {
	asRoot(t)
	s := start(t)
	if err := os.Mkdir(s.at("shut"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.refused(403, "permission-denied", "GET", "/v1/files/watch", q("path", "shut", "user", "1000"), "")
}

func TestWatchSaysWhenItLostSomething(t *testing.T) {
	queue := &watching{queue: make(chan watchEvent, 2)}
	for range 5 {
		queue.tell(watchEvent{Event: "created"})
	}
	if len(queue.queue) != 2 || !queue.lost.Load() {
		t.Error("a full queue must drop and remember it")
	}
	// A caller that does not read: its connection blocks in the first write, the events go on.
	dir := start(t).dir
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	caller := &blockedCaller{header: http.Header{}, may: make(chan struct{}), begun: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		request, _ := http.NewRequestWithContext(ctx, "GET", "/v1/files/watch?"+q("path", dir).Encode(), nil)
		New(Options{}).ServeHTTP(caller, request)
	}()
	<-caller.begun
	for i := range 2 * queuedEvents {
		if err := os.Mkdir(fmt.Sprintf("%s/%d", dir, i), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	close(caller.may)
	for deadline := time.Now().Add(20 * time.Second); !caller.saw(`{"event":"overflow","reason":"queue"}`); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the caller was never told")
		}
	}
	cancel()
	<-ended
}

type blockedCaller struct {
	header http.Header
	begun  chan struct{}
	may    chan struct{}
	once   sync.Once
	mutex  sync.Mutex
	got    strings.Builder
}

func (c *blockedCaller) Header() http.Header { return c.header }
func (c *blockedCaller) WriteHeader(int)     {}
func (c *blockedCaller) Flush()              {}

func (c *blockedCaller) Write(content []byte) (int, error) {
	c.once.Do(func() { close(c.begun) })
	<-c.may
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.got.Write(content)
}

func (c *blockedCaller) saw(text string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return strings.Contains(c.got.String(), text)
}

func TestWatchesEndWithTheirReaders(t *testing.T) {
	s := start(t)
	count := func() int {
		fds, _ := os.ReadDir("/proc/self/fd")
		return len(slices.DeleteFunc(fds, func(fd os.DirEntry) bool {
			target, _ := os.Readlink("/proc/self/fd/" + fd.Name())
			return !strings.Contains(target, "inotify")
		}))
	}
	before := count()
	var ends []context.CancelFunc
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		ends = append(ends, cancel)
		request, _ := http.NewRequestWithContext(ctx, "GET", s.url+"/v1/files/watch?recursive=1&path=.", nil)
		response, err := http.DefaultClient.Do(request)
		if err != nil || response.StatusCode != 200 {
			t.Fatal(response, err)
		}
	}
	if count() != before+20 {
		t.Errorf("%d instances", count()-before)
	}
	for _, end := range ends {
		end()
	}
	s.eventually("instances stay open", func() bool { return count() == before })
}
