package proc

import (
	"os"
	"path"
	"strings"
	"syscall"
)

// DefaultPath is what a command without PATH is given, as container runtimes do.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// FindProgram resolves argv[0] as execvp would, with the command's own PATH and working directory.
func FindProgram(name, pathList, dir string) (string, error) {
	if name == "" {
		return "", &StartError{Reason: NotFound, Detail: "the program's name is empty", Errno: syscall.ENOENT}
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	var denied bool
	for entry := range strings.SplitSeq(pathList, ":") {
		if entry == "" {
			entry = "."
		}
		candidate := entry + "/" + name
		full := candidate
		if !strings.HasPrefix(full, "/") {
			full = path.Join(dir, full)
		}
		info, err := os.Stat(full)
		if err != nil {
			denied = denied || os.IsPermission(err)
			continue
		}
		if info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
		denied = denied || info.Mode().IsRegular()
	}
	if denied {
		return "", &StartError{Reason: Permission, Detail: name + ": found in PATH, but not executable", Errno: syscall.EACCES}
	}
	return "", &StartError{Reason: NotFound, Detail: name + ": not found in PATH", Errno: syscall.ENOENT}
}

var shellDirs = []string{"/bin/", "/usr/bin/", "/usr/local/bin/"}

// FindShell resolves the shell to use: the asked one (a name or a path), or else bash, or else sh.
func FindShell(asked, pathList, dir string) (string, error) {
	names := []string{"bash", "sh"}
	if asked != "" {
		names = []string{asked}
	}
	for _, name := range names {
		if strings.HasPrefix(name, "/") {
			if isProgram(name) {
				return name, nil
			}
			continue
		}
		for _, d := range shellDirs {
			if isProgram(d + name) {
				return d + name, nil
			}
		}
		if found, err := FindProgram(name, pathList, dir); err == nil && strings.HasPrefix(found, "/") {
			return found, nil
		}
	}
	return "", &StartError{Reason: ShellNotFound, Detail: "shell not found: " + strings.Join(names, ", ") + "; use argv", Errno: syscall.ENOENT}
}

func isProgram(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// maxArgument is the kernel's MAX_ARG_STRLEN without the final NUL.
const maxArgument = 131071

// MaxCommandBytes is the longest shell text: with its copies in argv it must stay under a quarter of the usual stack.
const MaxCommandBytes = 1536 << 10

// ShellArgv is the argument list that makes a shell run text. Past the kernel's limit for one argument the text goes
// in pieces, which eval joins: positional parameters are shifted away on the text's first line, so $0, $#, stdin and
// line numbers are those of a plain -c, and the image needs no /proc, no /dev/fd and no writable folder.
func ShellArgv(shell, text string) []string {
	if len(text) <= maxArgument {
		return []string{shell, "-c", text}
	}
	var pieces []string
	for rest := text; rest != ""; {
		n := min(len(rest), maxArgument)
		pieces = append(pieces, rest[:n])
		rest = rest[n:]
	}
	join := "eval \"shift $#;"
	for i := range pieces {
		join += "${" + itoa(i+1) + "}"
	}
	return append([]string{shell, "-c", join + "\"", shell}, pieces...)
}

func itoa(n int) string {
	if n >= 10 {
		return itoa(n/10) + string(rune('0'+n%10))
	}
	return string(rune('0' + n))
}
