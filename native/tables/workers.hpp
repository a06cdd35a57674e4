// Threads that share the pieces of one call. They sleep while there is none; the caller does pieces, too, and returns when all are done.
#pragma once

#include <functional>

#include "base/base.hpp"

namespace osf::tables {

// work(0) to work(pieces - 1), each once, by at most `threads` threads (0: one for each processor that this process may use). The first
// exception is thrown here, and pieces that have not begun are left out.
void run_pieces(u64 pieces, u32 threads, const std::function<void(u64)>& work);

}  // namespace osf::tables
