package files

import (
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestMove(t *testing.T) {
	s := start(t)
	s.put("a", "a")
	s.put("b", "b")
	s.put("full/x", "")
	s.refused(409, "exists", "POST", "/v1/files/move", nil, `{"from":"a","to":"b"}`)
	moved := s.want(200, "POST", "/v1/files/move", nil, `{"from":"a","to":"b","overwrite":true}`).json(t)
	if s.get("b") != "a" || moved["path"] != s.at("b") || moved["name"] != "b" {
		t.Errorf("%v", moved)
	}
	s.refused(404, "not-found", "POST", "/v1/files/move", nil, `{"from":"a","to":"c"}`)
	s.want(200, "POST", "/v1/files/move", nil, `{"from":"b","to":"new/folder/b"}`)
	s.refused(404, "not-found", "POST", "/v1/files/move", nil, `{"from":"new/folder/b","to":"no/such/b","parents":false}`)
	s.refused(409, "exists", "POST", "/v1/files/move", nil, `{"from":"new","to":"full"}`)
	s.refused(409, "directory-not-empty", "POST", "/v1/files/move", nil, `{"from":"new","to":"full","overwrite":true}`)
	s.refused(409, "is-a-directory", "POST", "/v1/files/move", nil, `{"from":"new/folder/b","to":"full","overwrite":true}`)
	s.refused(422, "invalid", "POST", "/v1/files/move", nil, `{"from":"new","to":"new/inside"}`)
	if err := os.Symlink("nowhere", s.at("link")); err != nil {
		t.Fatal(err)
	}
	s.want(200, "POST", "/v1/files/move", nil, `{"from":"link","to":"link2"}`)
	if target, err := os.Readlink(s.at("link2")); err != nil || target != "nowhere" {
		t.Error("the link itself was not moved")
	}
	s.onlyNames(s.dir, "full", "link2", "new")
}

func TestMoveBetweenFileSystems(t *testing.T) {
	asRoot(t)
	s := start(t)
	if err := os.Mkdir(s.at("other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", s.at("other"), "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(s.at("other"), 0)
	s.put("tree/deep/file", "content")
	s.want(200, "PUT", "/v1/files", q("path", "tree/deep/file", "mode", "4750", "owner", "5:6"), "content")
	if err := os.Symlink("deep", s.at("tree", "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(s.at("tree", "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(s.at("tree", "deep", "file"))
	s.want(200, "POST", "/v1/files/move", nil, `{"from":"tree","to":"other/tree"}`)
	after, err := os.Stat(s.at("other", "tree", "deep", "file"))
	if err != nil || !after.ModTime().Equal(before.ModTime()) || after.Mode() != before.Mode() ||
		owners(t, s.at("other", "tree", "deep", "file")) != "5:6" || s.get("other/tree/deep/file") != "content" {
		t.Errorf("%v %v", after, err)
	}
	if target, _ := os.Readlink(s.at("other", "tree", "link")); target != "deep" {
		t.Error("the link became something else")
	}
	s.onlyNames(s.dir, "other")
	s.put("big", string(random(1, 6<<20)))
	s.refused(507, "no-space", "POST", "/v1/files/move", nil, `{"from":"big","to":"other/big"}`)
	s.onlyNames(s.at("other"), "tree")
	s.put("other/x", "old")
	s.put("x", "new")
	s.refused(409, "exists", "POST", "/v1/files/move", nil, `{"from":"x","to":"other/x"}`)
	s.want(200, "POST", "/v1/files/move", nil, `{"from":"x","to":"other/x","overwrite":true}`)
	if s.get("other/x") != "new" {
		t.Error("not overwritten")
	}
}

func TestMkdir(t *testing.T) {
	s := start(t)
	s.want(201, "POST", "/v1/files/mkdir", nil, `{"path":"a/b/c"}`)
	if again := s.want(200, "POST", "/v1/files/mkdir", nil, `{"path":"a/b/c/"}`).json(t); again["created"] != false {
		t.Errorf("%v", again)
	}
	s.refused(409, "exists", "POST", "/v1/files/mkdir", nil, `{"path":"a","parents":false}`)
	s.refused(404, "not-found", "POST", "/v1/files/mkdir", nil, `{"path":"x/y","parents":false}`)
	s.put("f", "")
	s.refused(409, "exists", "POST", "/v1/files/mkdir", nil, `{"path":"f"}`)
	s.refused(409, "not-a-directory", "POST", "/v1/files/mkdir", nil, `{"path":"f/g"}`)
	s.want(200, "POST", "/v1/files/mkdir", nil, `{"path":"/"}`)
}

func TestLink(t *testing.T) {
	s := start(t)
	s.put("f", "x")
	made := s.want(201, "POST", "/v1/files/link", nil, `{"path":"new/l","target":"../f"}`).json(t)
	if made["type"] != "symlink" || made["target"] != "../f" || s.get("new/l") != "x" {
		t.Errorf("%v", made)
	}
	s.refused(409, "exists", "POST", "/v1/files/link", nil, `{"path":"new/l","target":"other"}`)
	s.want(201, "POST", "/v1/files/link", nil, `{"path":"new/l","target":"other","overwrite":true}`)
	hard := s.want(201, "POST", "/v1/files/link", nil, `{"path":"h","target":"f","symbolic":false}`).json(t)
	if hard["links"] != 2.0 {
		t.Errorf("%v", hard)
	}
	s.want(201, "POST", "/v1/files/link", nil, `{"path":"h","target":"f","symbolic":false,"overwrite":true}`)
	s.refused(404, "not-found", "POST", "/v1/files/link", nil, `{"path":"i","target":"missing","symbolic":false}`)
	s.onlyNames(s.dir, "f", "h", "new")
	s.onlyNames(s.at("new"), "l")
}

func TestDelete(t *testing.T) {
	s := start(t)
	s.put("d/e/f", "x")
	s.put("outside", "x")
	if err := os.Symlink("../outside", s.at("d", "link")); err != nil {
		t.Fatal(err)
	}
	s.refused(409, "is-a-directory", "DELETE", "/v1/files", q("path", "d"), "")
	s.refused(404, "not-found", "DELETE", "/v1/files", q("path", "missing"), "")
	s.want(200, "DELETE", "/v1/files", q("path", "missing", "missing_ok", "true"), "")
	for _, path := range []string{".", "..", "/", "//", "./", "d/..", "d/."} {
		s.refused(422, "invalid", "DELETE", "/v1/files", q("path", path, "recursive", "true"), "")
	}
	s.want(200, "DELETE", "/v1/files", q("path", "d", "recursive", "true"), "")
	s.onlyNames(s.dir, "outside")
	deep := strings.Repeat("n/", 1500)
	s.want(201, "POST", "/v1/files/mkdir", nil, body(map[string]any{"path": deep}))
	s.want(200, "DELETE", "/v1/files", q("path", "n", "recursive", "true"), "")
}

func TestOneOfManyMovesWins(t *testing.T) {
	s := start(t)
	var movers sync.WaitGroup
	var mutex sync.Mutex
	won := 0
	for i := range 20 {
		s.put("from"+string(rune('a'+i)), "x")
	}
	for i := range 20 {
		movers.Go(func() {
			got, err := s.try("POST", "/v1/files/move", nil, strings.NewReader(`{"to":"one","from":"from`+string(rune('a'+i))+`"}`))
			mutex.Lock()
			defer mutex.Unlock()
			if err == nil && got.status == 200 {
				won++
			} else if err != nil || got.status != 409 {
				t.Errorf("%v %v", got.status, err)
			}
		})
	}
	movers.Wait()
	if won != 1 {
		t.Errorf("%d won", won)
	}
}
