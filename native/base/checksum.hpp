// The checksum of bytes that lie on flash: of a tier's unit, and of the pieces of a storage.
#pragma once

#include "base/base.hpp"

namespace osf {

constexpr u64 PIECE = MIB;  // what a storage's checksum is made of; part of the format of packed files

// Of a multiple of 64 bytes; copies them on the way, if there is a place for them: it begins at a multiple of 32.
u64 check_bytes(const char* bytes, u64 size, u64 seed, char* to = nullptr);

// The same without the vector instructions that this machine may have.
u64 check_bytes_plain(const char* bytes, u64 size, u64 seed, char* to = nullptr);

// The sum over the pieces, each with its number as seed, from `first` on: they may be checked in any order and by several threads.
// A multiple of 64 bytes; `bytes` begins with a piece.
u64 check_pieces(const char* bytes, u64 size, u64 first);

}  // namespace osf
