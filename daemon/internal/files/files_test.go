package files

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var hardNames = []string{
	"-rf", "a b", "a\nb", "\u00e9", "e\u0301", strings.Repeat("n", 255), strings.Repeat("é", 127), "%2e%2e", "%00", "a?b#c&d=e+f",
	"🤣.txt", `'"; touch pwn;#`, " lead", "tail ", "*", "\\", "~", "a;b", "...", "\xff\xfe", "caf\xe9", "\x01\x7f", "{}", "$(id)",
}

func TestB060NamesAreExact(t *testing.T) {
	s := start(t)
	for i, name := range hardNames {
		s.put("./"+name, fmt.Sprint(i))
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) != len(hardNames) {
		t.Fatalf("%d entries, want %d: %v", len(entries), len(hardNames), err)
	}
	listed := map[string]bool{}
	for _, item := range s.want(200, "GET", "/v1/files/list", q("path", s.dir), "").json(t)["items"].([]any) {
		listed[exact(item.(map[string]any), "name")] = true
	}
	for i, name := range hardNames {
		if content, err := os.ReadFile(s.dir + "/" + name); err != nil || string(content) != fmt.Sprint(i) {
			t.Errorf("%q holds %q: %v", name, content, err)
		}
		if s.get("./"+name) != fmt.Sprint(i) {
			t.Errorf("%q: another content", name)
		}
		if !listed[name] {
			t.Errorf("%q is not in the list", name)
		}
		if stat := s.want(200, "GET", "/v1/files/stat", q("path", "./"+name), "").json(t); exact(stat, "name") != name {
			t.Errorf("stat of %q names %v", name, stat)
		}
	}
	if len(listed) != len(hardNames) {
		t.Errorf("%d listed, want %d", len(listed), len(hardNames))
	}
	for _, name := range hardNames {
		moved := s.want(200, "POST", "/v1/files/move", nil, body(map[string]any{
			"from_b64": base64.StdEncoding.EncodeToString([]byte("./" + name)),
			"to_b64":   base64.StdEncoding.EncodeToString([]byte("moved/" + name)),
		})).json(t)
		if exact(moved, "path") != s.dir+"/moved/"+name {
			t.Errorf("moved to %v", moved)
		}
	}
	s.onlyNames(s.dir, "moved")
	for i, name := range hardNames {
		s.want(200, "DELETE", "/v1/files", q("path", "moved/"+name), "")
		if left, _ := os.ReadDir(s.at("moved")); len(left) != len(hardNames)-i-1 {
			t.Fatalf("deleting %q left %d", name, len(left))
		}
	}
}

// exact is the bytes of a name in an answer.
func exact(object map[string]any, member string) string {
	if b64, ok := object[member+"_b64"].(string); ok {
		name, _ := base64.StdEncoding.DecodeString(b64)
		return string(name)
	}
	return object[member].(string)
}

func TestB060PlusIsASpaceAndSemicolonsStay(t *testing.T) {
	s := start(t)
	s.write("a b", "space", 0o644)
	s.write("x;y", "semicolon", 0o644)
	for raw, want := range map[string]string{"path=a+b": "space", "path=a%20b": "space", "path=x;y": "semicolon"} {
		response, err := http.Get(s.url + "/v1/files?" + raw)
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if string(content) != want {
			t.Errorf("%s: %s", raw, content)
		}
	}
}

func TestPathsThatCannotBe(t *testing.T) {
	s := start(t)
	for _, path := range []string{"", "a\x00b"} {
		for _, call := range []string{"GET /v1/files", "PUT /v1/files", "DELETE /v1/files", "GET /v1/files/stat", "GET /v1/files/list",
			"GET /v1/archive", "PUT /v1/archive", "GET /v1/files/watch"} {
			method, where, _ := strings.Cut(call, " ")
			if got := s.refused(422, "invalid-request", method, where, q("path", path), "x"); got["field"] != "path" {
				t.Errorf("%s: field %v", call, got["field"])
			}
		}
	}
	long := strings.Repeat("l", 256)
	s.refused(422, "name-too-long", "GET", "/v1/files", q("path", long), "")
	s.refused(422, "name-too-long", "PUT", "/v1/files", q("path", long), "x")
	s.refused(422, "name-too-long", "PUT", "/v1/files", q("path", "new/"+long), "x")
	s.refused(422, "name-too-long", "PUT", "/v1/files", q("path", strings.Repeat("d/", 3000)+"f"), "x")
	s.onlyNames(s.dir)
	for _, raw := range []string{"path=%zz", "path=a&path=b", "path=a&colour=red", "path=a&parents=maybe"} {
		request, _ := http.NewRequest("PUT", s.url+"/v1/files?"+raw, strings.NewReader("x"))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 422 {
			t.Errorf("%s: %d", raw, response.StatusCode)
		}
	}
	for text, field := range map[string]any{
		`{"from":"a\u0000","to":"b"}`: "from", `{"from":"a","to":""}`: "to", `{"from":"a","to":"\ud800"}`: "to", "{\"from\":\"\xff\"}": "",
		`{"from":1,"to":"b"}`: "from", `{"from":"a","to":"b","x":1}`: "x", `{"FROM":"a","to":"b"}`: "FROM",
		`{"from":"a","from_b64":"YQ==","to":"b"}`: "from", `{"from_b64":"?","to":"b"}`: "from_b64", `{"from":"a","to":"b","overwrite":1}`: "overwrite",
	} {
		if got := s.refused(422, "invalid-request", "POST", "/v1/files/move", nil, text); got["field"] != field {
			t.Errorf("%s: field %v", text, got["field"])
		}
	}
	for _, text := range []string{`not json`, `{"from":"a","to":"b"}{}`, ``, `[]`, `null`} {
		s.refused(400, "invalid-json", "POST", "/v1/files/move", nil, text)
	}
	s.refused(413, "request-too-large", "POST", "/v1/files/move", nil, `{"from":"`+strings.Repeat("a", maxJSONBytes)+`"}`)
	s.refused(404, "not-found", "GET", "/v1/files/other", nil, "")
	s.refused(405, "method-not-allowed", "POST", "/v1/files", nil, "")
}

func TestB063BigFilesStreamInLittleMemory(t *testing.T) {
	s := start(t)
	const size = 512 << 20
	var before, peak runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				if now.HeapInuse > peak.HeapInuse {
					peak = now
				}
			}
		}
	})
	request, _ := http.NewRequest("PUT", s.url+"/v1/files?path=big", &zeros{size})
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != 201 {
		t.Fatal(response, err)
	}
	response.Body.Close()
	if response, err = http.Get(s.url + "/v1/files?path=big"); err != nil {
		t.Fatal(err)
	}
	read, err := io.Copy(io.Discard, response.Body)
	response.Body.Close()
	close(stop)
	watching.Wait()
	if read != size || err != nil {
		t.Fatalf("%d bytes: %v", read, err)
	}
	if grown := int64(peak.HeapInuse) - int64(before.HeapInuse); grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

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
		if got := s.refused(422, "invalid-request", "PUT", "/v1/files", q("path", "bad", "mode", bad), "x"); got["field"] != "mode" {
			t.Errorf("mode %q: field %v", bad, got["field"])
		}
	}
	s.refused(422, "invalid-request", "POST", "/v1/files/mkdir", nil, `{"path":"bad","mode":493}`)
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

func TestB075ContentIsExactAndMissingIsNotEmpty(t *testing.T) {
	s := start(t)
	for name, content := range map[string][]byte{
		"random": random(9, 10<<20), "a.gz": {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3}, "crlf": []byte("a\r\nb\r\n"),
		"nul": make([]byte, 4096), "page.html": []byte("<html>"), "empty": {},
	} {
		s.put(name, string(content))
		got := s.want(200, "GET", "/v1/files", q("path", name), "")
		if !bytes.Equal(got.body, content) || got.header.Get("Content-Type") != "application/octet-stream" ||
			got.header.Get("Content-Length") != fmt.Sprint(len(content)) || got.header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %d bytes, %v", name, len(got.body), got.header)
		}
	}
	got := s.refused(404, "not-found", "GET", "/v1/files", q("path", "missing"), "")
	if got["errno"] != "ENOENT" || got["path"] != s.at("missing") {
		t.Errorf("%v", got)
	}
	s.refused(409, "is-a-directory", "GET", "/v1/files", q("path", "."), "")
	s.refused(409, "not-a-directory", "GET", "/v1/files", q("path", "empty/x"), "")
	s.want(404, "HEAD", "/v1/files", q("path", "missing"), "")
	head := s.want(200, "HEAD", "/v1/files", q("path", "random"), "")
	if head.header.Get("X-Sandman-Size") != "10485760" || head.header.Get("Content-Length") != "10485760" || head.header.Get("X-Sandman-Mode") != "0644" {
		t.Errorf("%v", head.header)
	}
	if folder := s.want(200, "HEAD", "/v1/files", q("path", "."), ""); folder.header.Get("X-Sandman-Type") != "directory" {
		t.Errorf("%v", folder.header)
	}
}

func TestRangesResumeADownload(t *testing.T) {
	s := start(t)
	content := random(5, 1000)
	s.put("f", string(content))
	get := func(header, ifRange string) answer {
		request, _ := http.NewRequest("GET", s.url+"/v1/files?path=f", nil)
		request.Header.Set("Range", header)
		if ifRange != "" {
			request.Header.Set("If-Range", ifRange)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		got, _ := io.ReadAll(response.Body)
		return answer{response.StatusCode, response.Header, got}
	}
	for header, want := range map[string]struct{ from, to int }{
		"bytes=0-0": {0, 1}, "bytes=10-19": {10, 20}, "bytes=990-": {990, 1000}, "bytes=-10": {990, 1000}, "bytes=-5000": {0, 1000},
		"bytes=5-99999999999999999999": {5, 1000},
	} {
		got := get(header, "")
		if got.status != 206 || !bytes.Equal(got.body, content[want.from:want.to]) ||
			got.header.Get("Content-Range") != fmt.Sprintf("bytes %d-%d/1000", want.from, want.to-1) {
			t.Errorf("%s: %d, %d bytes, %v", header, got.status, len(got.body), got.header)
		}
	}
	for _, header := range []string{"bytes=5-4", "bytes=0-1,3-4", "lines=1-2", "bytes", "bytes=a-b", "bytes=-"} {
		if got := get(header, ""); got.status != 200 || len(got.body) != 1000 {
			t.Errorf("%s: %d", header, got.status)
		}
	}
	for _, header := range []string{"bytes=1000-", "bytes=-0", "bytes=99999999999999999999-"} {
		if got := get(header, ""); got.status != 416 || got.header.Get("Content-Range") != "bytes */1000" {
			t.Errorf("%s: %d", header, got.status)
		}
	}
	tag := get("bytes=0-0", "").header.Get("ETag")
	if got := get("bytes=0-0", tag); got.status != 206 {
		t.Error("the same file was not resumed")
	}
	s.put("f", string(random(6, 1000)))
	if got := get("bytes=0-0", tag); got.status != 200 {
		t.Error("another file was resumed")
	}
}

func TestSpecialFilesNeverHang(t *testing.T) {
	s := start(t)
	if err := syscall.Mkfifo(s.at("fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", s.at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for path, kind := range map[string]string{"fifo": "fifo", "socket": "socket", "/dev/zero": "char_device", "/dev/tty": "char_device"} {
		for _, method := range []string{"GET", "PUT"} {
			if got := s.refused(409, "special-file", method, "/v1/files", q("path", path), "x"); got["file_type"] != kind {
				t.Errorf("%s %s: %v", method, path, got)
			}
		}
		s.want(200, "HEAD", "/v1/files", q("path", path), "")
	}
	status := s.want(200, "GET", "/v1/files", q("path", "/proc/self/status"), "")
	if !bytes.Contains(status.body, []byte("VmRSS")) || status.header.Get("Content-Length") != fmt.Sprint(len(status.body)) {
		t.Errorf("/proc: %d bytes, %v", len(status.body), status.header)
	}
	if got := s.get("/sys/kernel/uevent_seqnum"); len(got) == 0 || len(got) > 30 {
		t.Errorf("/sys: %q", got)
	}
	// Endless: cut off, and never taken for whole.
	if got, err := s.try("GET", "/v1/files", q("path", "/proc/self/pagemap"), nil); err == nil {
		t.Errorf("pagemap looks whole with %d bytes", len(got.body))
	}
	s.want(200, "PUT", "/v1/files", q("path", "/proc/self/comm"), "renamed")
	if got := s.get("/proc/self/comm"); got != "renamed\n" {
		t.Errorf("/proc/self/comm is %q", got)
	}
	for _, path := range []string{"/proc/new", "/sys/new"} {
		if got := s.call("PUT", "/v1/files", q("path", path), "x"); got.status != 403 && got.status != 404 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
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
