//go:build race

package main

// raceFactor is what the race detector multiplies memory by.
const raceFactor = 10
