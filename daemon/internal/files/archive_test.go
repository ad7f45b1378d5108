package files

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

type member struct {
	tar.Header
	content string
}

func archive(members ...member) []byte {
	var out bytes.Buffer
	writer := tar.NewWriter(&out)
	for _, m := range members {
		header := m.Header
		if header.Typeflag == 0 {
			header.Typeflag = tar.TypeReg
		}
		if header.Mode == 0 {
			header.Mode = 0o644
		}
		header.Size = int64(len(m.content))
		if err := writer.WriteHeader(&header); err != nil {
			panic(err)
		}
		if _, err := io.WriteString(writer, m.content); err != nil {
			panic(err)
		}
	}
	_ = writer.Close()
	return out.Bytes()
}

func file(name, content string) member { return member{tar.Header{Name: name}, content} }
func symlink(name, target string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}, ""}
}
func hardlink(name, target string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}, ""}
}

// tree describes all that a folder holds.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		st, err := statat(atFDCWD, path, atSymlinkNofollow)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s %s %d", typeName(st.Mode), modeText(st), st.Mtim.Sec)
		switch typeName(st.Mode) {
		case "file":
			content, _ := os.ReadFile(path)
			text += fmt.Sprintf(" links=%d %q", st.Nlink, content)
		case "symlink":
			target, _ := os.Readlink(path)
			text += " -> " + target
		}
		found[strings.TrimPrefix(path, root+"/")] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestAnArchiveComesBackAsItWas(t *testing.T) {
	for _, beneath := range []bool{true, false} {
		t.Run(fmt.Sprintf("openat2=%v", beneath), func(t *testing.T) {
			s := start(t, func(o *Options) { o.withoutOpenat2 = !beneath })
			for _, name := range hardNames {
				s.put("src/in a folder/"+name, name)
			}
			s.put("src/big", string(random(3, 3<<20)))
			s.put("src/locked/inside", "x")
			for link, target := range map[string]string{"abs": "/usr/bin/env", "rel": "in a folder", "dangling": "\xff"} {
				if err := os.Symlink(target, s.at("src", link)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Link(s.at("src", "big"), s.at("src", "same")); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(s.at("src", "fifo"), 0o600); err != nil {
				t.Fatal(err)
			}
			long := strings.Repeat(strings.Repeat("d", 200)+"/", 10)
			s.put("src/"+long+"f", "deep")
			if err := os.Chmod(s.at("src", "locked"), 0o555); err != nil {
				t.Fatal(err)
			}
			past := time.Unix(1_000_000_000, 0)
			for _, name := range []string{"src/locked", "src/big"} {
				if err := os.Chtimes(s.at(name), past, past); err != nil {
					t.Fatal(err)
				}
			}
			got := s.want(200, "GET", "/v1/archive", q("path", "src"), "")
			if got.header.Get("Content-Type") != "application/x-tar" {
				t.Error(got.header)
			}
			stored := s.want(200, "PUT", "/v1/archive", q("path", "copies/one"), string(got.body)).json(t)
			if before, after := tree(t, s.at("src")), tree(t, s.at("copies", "one")); !maps.Equal(before, after) {
				for name, text := range before {
					if after[name] != text {
						t.Errorf("%q: %.100q, was %.100q", name, after[name], text)
					}
				}
				t.Errorf("%d entries, were %d", len(after), len(before))
			}
			if stored["members"].(float64) < 30 {
				t.Errorf("%v", stored)
			}
			// Over what is there already: the same again.
			s.want(200, "PUT", "/v1/archive", q("path", "copies/one"), string(got.body))
			if !maps.Equal(tree(t, s.at("src")), tree(t, s.at("copies", "one"))) {
				t.Error("the second extraction differs")
			}
		})
	}
}

func TestMembersThatEscapeAreRefused(t *testing.T) {
	attacks := map[string][]byte{
		"parent":                 archive(file("../pwn", "x")),
		"parent inside":          archive(file("a/../../pwn", "x")),
		"absolute":               archive(file("/tmp/pwn", "x")),
		"through a link":         archive(symlink("l", ".."), file("l/pwn", "x")),
		"through an absolute":    archive(symlink("l", "/tmp"), file("l/pwn", "x")),
		"through a link chain":   archive(symlink("a", "b"), symlink("b", "../.."), file("a/pwn", "x")),
		"a folder through":       archive(symlink("l", ".."), member{tar.Header{Name: "l/pwn/", Typeflag: tar.TypeDir}, ""}),
		"link in a linked":       archive(symlink("l", ".."), symlink("l/pwn", "x")),
		"through what is there":  archive(file("there/pwn", "x")),
		"hard link up":           archive(hardlink("h", "../outside")),
		"hard link absolute":     archive(hardlink("h", "/etc/passwd")),
		"hard link through":      archive(symlink("l", ".."), hardlink("h", "l/outside")),
		"hard link to itself":    archive(hardlink("h", ".")),
		"proc":                   archive(symlink("l", "/proc/self/root"), file("l/tmp/pwn", "x")),
		"the folder's own chmod": archive(symlink("l", ".."), member{tar.Header{Name: "l/", Typeflag: tar.TypeDir, Mode: 0o700}, ""}),
	}
	for _, beneath := range []bool{true, false} {
		for name, content := range attacks {
			t.Run(fmt.Sprintf("%s openat2=%v", name, beneath), func(t *testing.T) {
				s := start(t, func(o *Options) { o.withoutOpenat2 = !beneath })
				s.put("outside", "untouched")
				s.put("in/side", "x")
				if err := os.Symlink("..", s.at("in", "there")); err != nil {
					t.Fatal(err)
				}
				got := s.refused(422, "escaping-member", "PUT", "/v1/archive", q("path", "in"), string(content))
				if got["member"] == nil || got["members_extracted"] == nil {
					t.Errorf("%v", got)
				}
				s.onlyNames(s.dir, "in", "outside")
				if s.get("outside") != "untouched" {
					t.Error("written outside")
				}
				if _, err := os.Lstat("/tmp/pwn"); err == nil {
					_ = os.Remove("/tmp/pwn")
					t.Error("written to /tmp")
				}
			})
		}
	}
}

func TestAFileReplacesALinkAndDoesNotFollowIt(t *testing.T) {
	s := start(t)
	s.put("outside", "untouched")
	content := archive(symlink("l", "../outside"), file("l", "mine"), symlink("m", "n"), member{tar.Header{Name: "n/", Typeflag: tar.TypeDir, Mode: 0o755}, ""},
		file("m/inside", "by a link that stays inside"))
	s.want(200, "PUT", "/v1/archive", q("path", "in"), string(content))
	if s.get("outside") != "untouched" || s.get("in/l") != "mine" || s.get("in/n/inside") == "" {
		t.Error("followed")
	}
}

func TestASwappedFolderDoesNotLeadOut(t *testing.T) {
	s := start(t)
	s.put("outside/keep", "untouched")
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(s.at("in", "d"), s.at("in", "aside"))
			_ = os.Symlink("../outside", s.at("in", "d"))
			_ = os.Remove(s.at("in", "d"))
			_ = os.Rename(s.at("in", "aside"), s.at("in", "d"))
		}
	})
	var members []member
	for i := range 60 {
		members = append(members, file(fmt.Sprintf("d/%d", i), "x"), file(fmt.Sprintf("e/%d", i), "x"))
	}
	content := string(archive(members...))
	for range 40 {
		if got := s.call("PUT", "/v1/archive", q("path", "in"), content); got.status != 200 && got.status != 422 && got.status != 404 && got.status != 409 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	close(stop)
	swapping.Wait()
	s.onlyNames(s.at("outside"), "keep")
}

func TestArchivesThatAreNone(t *testing.T) {
	s := start(t)
	whole := archive(file("a", strings.Repeat("x", 5000)), file("b", "y"))
	for name, content := range map[string]string{"empty": "", "text": strings.Repeat("not a tar", 200), "gzip": "\x1f\x8b\x08" + strings.Repeat("\x01", 600),
		"cut": string(whole[:2000])} {
		if got := s.refused(422, "bad-archive", "PUT", "/v1/archive", q("path", "in"), content); got["members_extracted"] == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	s.onlyNames(s.at("in"))
	s.want(200, "PUT", "/v1/archive", q("path", "in"), string(archive()))
	for _, kind := range []byte{tar.TypeChar, tar.TypeBlock} {
		s.refused(422, "unsupported-member", "PUT", "/v1/archive", q("path", "in"), string(archive(member{tar.Header{Name: "dev", Typeflag: kind, Devmajor: 1}, ""})))
	}
	s.put("f", "")
	s.refused(409, "not-a-directory", "PUT", "/v1/archive", q("path", "f"), string(whole))
	s.refused(409, "not-a-directory", "GET", "/v1/archive", q("path", "f"), "")
	s.refused(404, "not-found", "GET", "/v1/archive", q("path", "missing"), "")
	s.refused(404, "not-found", "PUT", "/v1/archive", q("path", "no/such", "parents", "false"), string(whole))
	s.put("in/dir/x", "")
	s.refused(409, "is-a-directory", "PUT", "/v1/archive", q("path", "in"), string(archive(file("dir", "x"))))
	s.refused(409, "not-a-directory", "PUT", "/v1/archive", q("path", "in"), string(archive(file("dir/x/y", "x"))))
	s.onlyNames(s.at("in"), "dir")
}

func TestArchiveLimits(t *testing.T) {
	s := start(t, func(o *Options) { o.MaxFileBytes = 1000; o.MaxArchiveBytes = 1500 })
	s.refused(413, "too-large", "PUT", "/v1/archive", q("path", "in"), string(archive(file("a", strings.Repeat("x", 1001)))))
	s.refused(413, "too-large", "PUT", "/v1/archive", q("path", "in"), string(archive(file("a", strings.Repeat("x", 900)), file("b", strings.Repeat("x", 900)))))
	s.onlyNames(s.at("in"), "a")
	s.want(200, "PUT", "/v1/archive", q("path", "in"), string(archive(file("a", strings.Repeat("x", 1000)))))
}

func TestB067ArchiveMembersBelongToTheUser(t *testing.T) {
	asRoot(t)
	s := start(t, asUser1000)
	s.want(200, "PUT", "/v1/archive", q("path", "in"), string(archive(member{tar.Header{Name: "d/f", Uid: 0, Gid: 0, Mode: 0o4755}, "x"})))
	if got := owners(t, s.at("in"), s.at("in", "d"), s.at("in", "d", "f")); got != "1000:1000 1000:1000 1000:1000" {
		t.Error(got)
	}
	s.want(200, "PUT", "/v1/archive", q("path", "own", "user", "0", "owner", "7:8"), string(archive(file("d/f", "x"), symlink("l", "x"))))
	if got := owners(t, s.at("own"), s.at("own", "d"), s.at("own", "d", "f"), s.at("own", "l")); got != "7:8 7:8 7:8 7:8" {
		t.Error(got)
	}
	s.write("closed", "x", 0o600)
	// One unreadable file is told before the first byte, not found missing afterwards.
	if got := s.refused(403, "permission-denied", "GET", "/v1/archive", q("path", "."), ""); got["path"] != s.at("closed") {
		t.Errorf("%v", got)
	}
}

func TestAnArchiveOfPseudoFiles(t *testing.T) {
	s := start(t)
	got := s.want(200, "GET", "/v1/archive", q("path", "/proc/sys/kernel/random"), "")
	reader := tar.NewReader(bytes.NewReader(got.body))
	for {
		header, err := reader.Next()
		if err != nil {
			t.Fatalf("no boot_id: %v", err)
		}
		if header.Name == "boot_id" { // of size 0, says stat
			if content, err := io.ReadAll(reader); err != nil || len(content) != 37 {
				t.Errorf("%q %v", content, err)
			}
			return
		}
	}
}
