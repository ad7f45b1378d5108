package files

// System calls that the standard library has no number for; the rest come from package syscall.
const sysRenameat2 = 316

const sysFstatat = 262
