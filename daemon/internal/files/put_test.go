package files

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// broken sends a part of a request over a bare connection and then does what end says.
func (s *service) broken(head string, sent []byte, end func(net.Conn)) {
	s.Helper()
	connection, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.Fatal(err)
	}
	defer connection.Close()
	_, _ = io.WriteString(connection, head+"\r\nHost: x\r\n\r\n")
	_, _ = connection.Write(sent)
	end(connection)
}

func (s *service) eventually(what string, holds func() bool) {
	s.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatal(what)
		}
	}
}

func TestB064ABrokenUploadChangesNothing(t *testing.T) {
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprintf("named=%v", named), func(t *testing.T) {
			// named: as on file systems without O_TMPFILE, and where /proc is missing.
			s := start(t, func(o *Options) { o.withoutTmpfile = named })
			s.write("data.bin", "v1", 0o640)
			part := random(1, 6<<20)
			for _, head := range []string{
				"PUT /v1/files?path=data.bin HTTP/1.1\r\nContent-Length: 10000000",
				"PUT /v1/files?path=data.bin&append=true HTTP/1.1\r\nContent-Length: 10000000",
				"PUT /v1/files?path=new/deep/data.bin HTTP/1.1\r\nContent-Length: 10000000",
				"PUT /v1/files?path=data.bin HTTP/1.1\r\nTransfer-Encoding: chunked",
			} {
				sent := part
				if strings.HasSuffix(head, "chunked") {
					sent = append([]byte("600000\r\n"), part...)
				}
				s.broken(head, sent, func(connection net.Conn) {
					if s.get("data.bin") != "v1" {
						t.Errorf("%s: seen before it was whole", head)
					}
				})
				s.eventually("the temporary file stays", func() bool {
					entries, _ := os.ReadDir(s.dir)
					return len(entries) == 1
				})
				if s.get("data.bin") != "v1" {
					t.Errorf("%s: changed", head)
				}
			}
			s.put("data.bin", string(part))
			if s.get("data.bin") != string(part) {
				t.Error("the retry failed")
			}
			s.put("new/deep/er.bin", "fresh")
			if s.get("new/deep/er.bin") != "fresh" {
				t.Error("no new file")
			}
			s.onlyNames(s.at("new", "deep"), "er.bin")
			s.onlyNames(s.dir, "data.bin", "new")
		})
	}
}

func TestB064NobodySeesAPartialFile(t *testing.T) {
	s := start(t)
	old, fresh := strings.Repeat("a", 3<<20), strings.Repeat("b", 3<<20)
	s.put("f", old)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			content, err := os.ReadFile(s.at("f"))
			if err != nil || len(content) != 3<<20 || content[0] != content[len(content)-1] {
				t.Errorf("%d bytes: %v", len(content), err)
				return
			}
		}
	})
	for range 10 {
		s.put("f", fresh)
		s.put("f", old)
	}
	close(stop)
	readers.Wait()
}

func TestB065LengthsAndLimits(t *testing.T) {
	const limit = 1 << 20
	s := start(t, func(o *Options) { o.MaxFileBytes = limit; o.BodyIdleTimeout = 300 * time.Millisecond })
	for _, size := range []int{0, 1, limit - 1, limit} {
		s.put("f", string(random(2, size)))
		if s.get("f") != string(random(2, size)) {
			t.Errorf("%d bytes: another content", size)
		}
	}
	s.refused(413, "too-large", "PUT", "/v1/files", q("path", "g"), string(random(3, limit+1)))
	chunked, err := s.try("PUT", "/v1/files", q("path", "g"), struct{ io.Reader }{&zeros{limit + 1}})
	if err != nil || chunked.status != 413 {
		t.Errorf("chunked over the limit: %v %v", chunked.status, err)
	}
	// A huge one is refused without being read: the sender of 1 TiB gets its answer at once.
	s.broken("PUT /v1/files?path=g HTTP/1.1\r\nContent-Length: 1099511627776", nil, func(connection net.Conn) {
		wantStatus(t, connection, 413)
	})
	s.broken("PUT /v1/files?path=g HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2097152", nil, func(connection net.Conn) {
		wantStatus(t, connection, 413)
	})
	s.broken("PUT /v1/files?path=f/x HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5", nil, func(connection net.Conn) {
		wantStatus(t, connection, 409) // f is a file: said before the body is asked for
	})
	s.broken("PUT /v1/files?path=e HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5", nil, func(connection net.Conn) {
		wantStatus(t, connection, 100)
		_, _ = io.WriteString(connection, "hello")
		wantStatus(t, connection, 201)
	})
	if s.get("e") != "hello" {
		t.Error("after 100-continue: another content")
	}
	begun := time.Now()
	s.broken("PUT /v1/files?path=g HTTP/1.1\r\nContent-Length: 1000000", random(4, 1000), func(connection net.Conn) {
		wantStatus(t, connection, 408)
	})
	if waited := time.Since(begun); waited > 5*time.Second {
		t.Errorf("a stalled upload held its connection for %v", waited)
	}
	s.onlyNames(s.dir, "e", "f")
}

// wantStatus reads one head from the connection (bare: http.ReadResponse would read ahead).
func wantStatus(t *testing.T, connection net.Conn, status int) {
	t.Helper()
	_ = connection.SetReadDeadline(time.Now().Add(10 * time.Second))
	var head []byte
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		one := make([]byte, 1)
		if _, err := connection.Read(one); err != nil {
			t.Fatalf("after %q: %v", head, err)
		}
		head = append(head, one[0])
	}
	if !bytes.HasPrefix(head, fmt.Appendf(nil, "HTTP/1.1 %d ", status)) {
		t.Fatalf("want %d: %s", status, head)
	}
}

func TestB068ModesAreOctalAndExact(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	s := start(t)
	modeOf := func(name string) string {
		return s.want(200, "GET", "/v1/files/stat", q("path", name), "").json(t)["mode"].(string)
	}
	for asked, want := range map[string]string{"0755": "0755", "755": "0755", "4755": "4755", "0": "0000", "07777": "7777", "644": "0644"} {
		s.call("DELETE", "/v1/files", q("path", "f", "missing_ok", "true"), "")
		s.want(201, "PUT", "/v1/files", q("path", "f", "mode", asked), "x")
		if modeOf("f") != want {
			t.Errorf("mode %s: %s", asked, modeOf("f"))
		}
		if asked == "0" || asked == "4755" {
			continue
		}
		s.want(201, "POST", "/v1/files/mkdir", nil, body(map[string]any{"path": "d" + asked, "mode": asked}))
		if modeOf("d"+asked) != want {
			t.Errorf("mkdir mode %s: %s", asked, modeOf("d"+asked))
		}
	}
	for _, bad := range []string{"493", "0o755", "999", "", "-755", "+755", "0x1ff", "17777", "7_5", "rwxr-xr-x", "000755"} {
		if got := s.refused(422, "invalid", "PUT", "/v1/files", q("path", "bad", "mode", bad), "x"); got["field"] != "mode" {
			t.Errorf("mode %q: field %v", bad, got["field"])
		}
		if got := s.refused(422, "invalid", "POST", "/v1/files/mkdir", nil, body(map[string]any{"path": "bad", "mode": bad})); got["field"] != "mode" {
			t.Errorf("mkdir mode %q: field %v", bad, got["field"])
		}
	}
	s.refused(422, "invalid", "POST", "/v1/files/mkdir", nil, `{"path":"bad","mode":493}`)
	s.put("parents/of/f", "x")
	for path, want := range map[string]string{"parents": "0755", "parents/of": "0755", "parents/of/f": "0644"} {
		if modeOf(path) != want {
			t.Errorf("%s: %s", path, modeOf(path))
		}
	}
	s.write("kept", "v1", 0o600)
	if err := syscall.Chmod(s.at("kept"), 0o4710); err != nil {
		t.Fatal(err)
	}
	s.put("kept", "v2")
	if modeOf("kept") != "4710" {
		t.Errorf("a replaced file's mode became %s", modeOf("kept"))
	}
}

func TestPutFollowsLinksAndRefusesFolders(t *testing.T) {
	s := start(t)
	s.write("real", "old", 0o600)
	for link, target := range map[string]string{"l1": "real", "l2": s.at("l1"), "dangling": "made", "loop": "loop", "out": "."} {
		if err := os.Symlink(target, s.at(link)); err != nil {
			t.Fatal(err)
		}
	}
	s.put("l2", "through")
	if content, _ := os.ReadFile(s.at("real")); string(content) != "through" {
		t.Errorf("real holds %q", content)
	}
	if target, err := os.Readlink(s.at("l2")); err != nil || target != s.at("l1") {
		t.Error("the link is a link no more")
	}
	s.put("dangling", "x")
	if s.get("made") != "x" {
		t.Error("the link's target was not made")
	}
	s.refused(409, "link-loop", "PUT", "/v1/files", q("path", "loop"), "x")
	s.refused(409, "is-a-directory", "PUT", "/v1/files", q("path", "out"), "x")
	for _, path := range []string{".", "..", "real/", "new/", "/"} {
		s.refused(409, "is-a-directory", "PUT", "/v1/files", q("path", path), "x")
	}
	s.refused(404, "not-found", "PUT", "/v1/files", q("path", "no/such", "parents", "false"), "x")
	s.put("a/../b/./c", "dots")
	if s.get("b/c") != "dots" {
		t.Error("dots in new folders")
	}
}

func TestAPartIsNotTakenForTheWhole(t *testing.T) {
	s := start(t)
	s.put("f", "whole")
	s.broken("PUT /v1/files?path=f HTTP/1.1\r\nContent-Range: bytes 0-0/5\r\nContent-Length: 1", []byte("W"), func(connection net.Conn) {
		wantStatus(t, connection, 422)
	})
	if s.get("f") != "whole" {
		t.Error("changed")
	}
}

func TestAppendKeepsEveryLineOfManyWriters(t *testing.T) {
	s := start(t)
	var writers sync.WaitGroup
	for writer := range 8 {
		writers.Go(func() {
			for i := range 20 {
				line := fmt.Sprintf("%d-%d %s\n", writer, i, strings.Repeat("x", 10_000))
				if got, err := s.try("PUT", "/v1/files", q("path", "log", "append", "true"), strings.NewReader(line)); err != nil || got.status > 201 {
					t.Errorf("%v %v", got.status, err)
				}
			}
		})
	}
	writers.Wait()
	lines := bufio.NewScanner(strings.NewReader(s.get("log")))
	seen := 0
	for lines.Scan() {
		if len(lines.Text()) < 10_000 {
			t.Fatal("a torn line")
		}
		seen++
	}
	if seen != 160 {
		t.Errorf("%d lines, want 160", seen)
	}
	s.onlyNames(s.dir, "log")
}
