// What Python gives to KV pools: tokens, keys, addresses.
#pragma once

#include <nanobind/nanobind.h>

#include "kv/draft.hpp"

namespace osf::bind {

namespace nb = nanobind;

// A buffer of Python's for as long as this lives.
class PyBytesOf {
public:
    PyBytesOf(nb::handle from, int flags) {
        if (PyObject_GetBuffer(from.ptr(), &view, flags) < 0) throw nb::python_error();
    }
    ~PyBytesOf() { PyBuffer_Release(&view); }
    PyBytesOf(const PyBytesOf&) = delete;
    Py_buffer view{};
};

[[noreturn]] inline void not_a_token(long long token) {
    throw Error(Code::bad_input, "token " + std::to_string(token) + " is out of range: tokens are integers from 0 to 4294967295");
}

// Tokens as they are kept and hashed: a buffer of unsigned 4-byte integers as it is, one of signed or 8-byte ones or a list converted.
class Tokens {
public:
    explicit Tokens(nb::handle from) {
        if (PyList_Check(from.ptr())) {
            of_list(from);
            return;
        }
        if (PyObject_GetBuffer(from.ptr(), &buffer_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) throw nb::python_error();
        const char kind = buffer_.format ? buffer_.format[buffer_.format[0] == '<' || buffer_.format[0] == '@' || buffer_.format[0] == '='] : 'B';
        const bool is_signed = std::strchr("ilq", kind), is_unsigned = std::strchr("ILQ", kind);
        const u64 count = u64(buffer_.len / buffer_.itemsize);
        if (!kind || (!is_signed && !is_unsigned) || (buffer_.itemsize != 4 && buffer_.itemsize != 8)) {
            PyBuffer_Release(&buffer_);
            throw Error(Code::bad_input, "tokens are integers of 4 or 8 bytes");
        }
        if (buffer_.itemsize == 4 && is_unsigned) span = {static_cast<const u32*>(buffer_.buf), count};
        else if (buffer_.itemsize == 4) convert<std::int32_t>(count);
        else convert<std::int64_t>(count);
    }
    ~Tokens() {
        if (buffer_.obj) PyBuffer_Release(&buffer_);
    }
    Tokens(const Tokens&) = delete;

    std::span<const u32> span;

private:
    void of_list(nb::handle from) {
        const Py_ssize_t count = PyList_Size(from.ptr());
        own_.resize(u64(count));
        for (Py_ssize_t at = 0; at < count; at++) {
            PyObject* item = PyList_GetItem(from.ptr(), at);
            long long token = PyLong_AsLongLong(item);
            if (token < 0 || token > 0xffffffffll) {
                if (!PyErr_Occurred()) not_a_token(token);
                PyErr_Clear();
                throw Error(Code::bad_input, "tokens are integers from 0 to 4294967295, got " + std::string(nb::repr(item).c_str()) +
                                                 " at position " + std::to_string(at));
            }
            own_[u64(at)] = u32(token);
        }
        span = own_;
    }
    template <class T>
    void convert(u64 count) {
        const T* from = static_cast<const T*>(buffer_.buf);
        own_.resize(count);
        u64 high = 0;
        for (u64 at = 0; at < count; at++) {
            high |= u64(std::int64_t(from[at])) >> 32;
            own_[at] = u32(from[at]);
        }
        if (high) {
            for (u64 at = 0; at < count; at++)
                if (u64(std::int64_t(from[at])) >> 32) {
                    T bad = from[at];
                    PyBuffer_Release(&buffer_);
                    buffer_.obj = nullptr;
                    not_a_token(bad);
                }
        }
        span = own_;
    }
    Py_buffer buffer_{};
    std::vector<u32> own_;
};

inline KvKey root_of(nb::bytes root) {
    KvKey key;
    if (root.size() != sizeof key) throw Error(Code::bad_input, "a root key has 32 bytes, got " + std::to_string(root.size()));
    std::memcpy(&key, root.c_str(), sizeof key);
    return key;
}

struct Pieces {             // addresses come as a buffer of u64, a table as one of u32
    PyBytesOf buffer, numbers;
    KvPieces pieces;
    Pieces(nb::handle addresses, u64 first, u64 bytes) : Pieces(addresses, first, bytes, bytes, nb::bytes("", 0)) {}
    Pieces(nb::handle addresses, u64 first, u64 bytes, u64 step, nb::handle table) : buffer(addresses, PyBUF_SIMPLE), numbers(table, PyBUF_SIMPLE) {
        if (buffer.view.len % 8 || numbers.view.len % 4) throw Error(Code::bad_input, "addresses have 8 bytes each, numbers of pages 4");
        pieces = {{static_cast<const u64*>(buffer.view.buf), u64(buffer.view.len) / 8}, first, bytes, step,
                  {static_cast<const u32*>(numbers.view.buf), u64(numbers.view.len) / 4}};
    }
};

inline nb::tuple stored_tuple(const KvStored& stored) { return nb::make_tuple(stored.blocks, stored.present, stored.stored, stored.declined); }

}  // namespace osf::bind
