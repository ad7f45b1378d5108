package pid1

// sysCloseRange is close_range, which package syscall has no number for; it is the same everywhere.
const sysCloseRange = 436
