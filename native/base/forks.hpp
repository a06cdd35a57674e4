// Descriptors of this process alone: a forked child closes them before fork() returns there. Without that a child would keep its
// parent's connections open, and homes would keep what a killed parent held for as long as its child lives.
#pragma once
#include <sys/socket.h>

namespace osf {

int open_own_socket(int family, int type, int protocol);  // ::socket; no fork comes between opening it and knowing it
void close_in_children(int fd, bool add);
void close_own(int fd);                                   // whether it was known or not

void lock_own_fds();                                      // around fork(), in its handlers
void unlock_own_fds();
void close_inherited_fds();                               // in the child, locked

}  // namespace osf
