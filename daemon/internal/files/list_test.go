package files

import (
	"encoding/base64"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// pages reads a whole listing page by page.
func (s *service) pages(pairs ...string) (paths []string, entries map[string]map[string]any, count int) {
	s.Helper()
	entries = map[string]map[string]any{}
	query := q(pairs...)
	for {
		page := s.want(200, "GET", "/v1/files/list", query, "").json(s)
		for _, item := range page["items"].([]any) {
			entry := item.(map[string]any)
			path := strings.TrimPrefix(exact(entry, "path"), s.dir+"/")
			paths = append(paths, path)
			entries[path] = entry
		}
		count++
		if page["truncated"] != (page["next"] != nil) {
			s.Fatalf("truncated %v but next %v", page["truncated"], page["next"])
		}
		if page["next"] == nil {
			return paths, entries, count
		}
		query.Set("cursor", page["next"].(string))
	}
}

func TestB073HardFolders(t *testing.T) {
	s := start(t)
	for link, target := range map[string]string{"dangling": "nowhere", "loop": "loop", "up": "..", "\xfflink": "\xfe"} {
		if err := os.Symlink(target, s.at(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(s.at("fifo"), 0o640); err != nil {
		t.Fatal(err)
	}
	s.put("sub/deep/er", "abc")
	_, entries, _ := s.pages("path", ".", "depth", "3")
	for path, want := range map[string]string{"dangling": "symlink", "loop": "symlink", "up": "symlink", "fifo": "fifo", "sub": "directory",
		"sub/deep": "directory", "sub/deep/er": "file", "\xfflink": "symlink"} {
		if entries[path] == nil || entries[path]["type"] != want {
			t.Errorf("%q: %v", path, entries[path])
		}
	}
	if len(entries) != 8 || entries["dangling"]["target"] != "nowhere" || exact(entries["\xfflink"], "target") != "\xfe" ||
		entries["sub/deep/er"]["size"] != 3.0 || entries["fifo"]["mode"] != "0640" {
		t.Errorf("%d: %v", len(entries), entries)
	}
	s.refused(409, "not-a-directory", "GET", "/v1/files/list", q("path", "sub/deep/er"), "")
	s.refused(404, "not-found", "GET", "/v1/files/list", q("path", "missing"), "")
	s.refused(409, "link-loop", "GET", "/v1/files/list", q("path", "loop"), "")
	for _, bad := range []string{"?", "Li4", base64.RawURLEncoding.EncodeToString([]byte("../..")), base64.RawURLEncoding.EncodeToString([]byte("a//b"))} {
		s.refused(422, "invalid", "GET", "/v1/files/list", q("path", ".", "cursor", bad), "")
	}
	for _, bad := range []string{"0", "-1", "1000000", "x"} {
		s.refused(422, "invalid", "GET", "/v1/files/list", q("path", ".", "limit", bad), "")
		s.refused(422, "invalid", "GET", "/v1/files/list", q("path", ".", "depth", bad), "")
	}
}

func TestB073UnreadableFoldersAreEntriesWithAnError(t *testing.T) {
	asRoot(t)
	s := start(t, asUser1000)
	for name, mode := range map[string]os.FileMode{"closed": 0o700, "names-only": 0o744} {
		if err := os.Mkdir(s.at(name), 0o755); err != nil {
			t.Fatal(err)
		}
		s.write(name+"/f", "x", 0o644)
		if err := os.Chmod(s.at(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	_, entries, _ := s.pages("path", ".", "depth", "5")
	if len(entries) != 3 || entries["closed"]["error"] != "EACCES" || entries["names-only/f"]["type"] != "unknown" {
		t.Errorf("%v", entries)
	}
}

func TestB073HundredThousandEntriesInPages(t *testing.T) {
	s := start(t)
	const files = 100_000
	for i := range files {
		fd, err := syscall.Open(s.at(fmt.Sprintf("f%06d", i)), syscall.O_CREAT|syscall.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Close(fd)
	}
	begun := time.Now()
	paths, _, count := s.pages("path", ".", "limit", "10000")
	t.Logf("%d entries in %d pages: %v", len(paths), count, time.Since(begun))
	if len(paths) != files || !sort.StringsAreSorted(paths) || paths[0] != "f000000" || count < 10 {
		t.Errorf("%d entries in %d pages", len(paths), count)
	}
	if page := s.want(200, "GET", "/v1/files/list", q("path", "."), "").json(t); len(page["items"].([]any)) != listLimitDefault {
		t.Errorf("%d entries without a limit", len(page["items"].([]any)))
	}
}

func TestB073PagesCutAnywhereAreTheWholeTree(t *testing.T) {
	s := start(t)
	for _, path := range []string{"a/1", "a/2/x", "a/2/y/z", "a-b", "a.b/c", "b", "c/d/e/f", "\xff/g"} {
		s.put(path, "")
	}
	all, _, _ := s.pages("path", ".", "depth", "10")
	if len(all) != 16 {
		t.Fatalf("%q", all)
	}
	for limit := 1; limit <= len(all)+1; limit++ {
		if got, _, _ := s.pages("path", ".", "depth", "10", "limit", fmt.Sprint(limit)); strings.Join(got, "|") != strings.Join(all, "|") {
			t.Errorf("limit %d: %q", limit, got)
		}
	}
	if shallow, _, _ := s.pages("path", ".", "limit", "2"); len(shallow) != 6 {
		t.Errorf("%q", shallow)
	}
}

func TestB073FoldersThatChangeMeanwhile(t *testing.T) {
	s := start(t)
	for i := range 200 {
		s.put(fmt.Sprintf("stays/%03d", i), "")
	}
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			folder := s.at("stays", fmt.Sprintf("%03d-x", i%50))
			_ = os.MkdirAll(folder+"/y", 0o755)
			_ = os.RemoveAll(folder)
		}
	})
	for range 30 {
		paths, _, _ := s.pages("path", "stays", "depth", "3", "limit", "37")
		stayed := map[string]int{}
		for _, path := range paths {
			if !strings.Contains(path, "x") {
				stayed[path]++
			}
		}
		for path, times := range stayed {
			if times != 1 {
				t.Errorf("%s told %d times", path, times)
			}
		}
		if len(stayed) != 200 {
			t.Errorf("%d of 200", len(stayed))
		}
	}
	close(stop)
	changing.Wait()
}

func TestB073TheWholeRoot(t *testing.T) {
	s := start(t)
	begun := time.Now()
	page := s.want(200, "GET", "/v1/files/list", q("path", "/", "depth", "256", "limit", "5000"), "").json(t)
	if len(page["items"].([]any)) == 0 || time.Since(begun) > 2*pageTime {
		t.Errorf("%d entries in %v", len(page["items"].([]any)), time.Since(begun))
	}
	// /proc changes under the walk more than anything.
	if got := s.want(200, "GET", "/v1/files/list", q("path", "/proc", "depth", "3", "limit", "10000"), "").json(t); len(got["items"].([]any)) < 100 {
		t.Error("little of /proc")
	}
}
