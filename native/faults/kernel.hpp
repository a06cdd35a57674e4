// The kernel's interface, as far as it is newer than the headers of Debian 12.
#pragma once

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "base/base.hpp"

#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP (u64(1) << 1)
#endif
#ifndef UFFD_FEATURE_POISON
#define UFFD_FEATURE_POISON (1 << 14)
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace osf::faults {

struct Poison { u64 start, length, mode; std::int64_t updated; };
constexpr unsigned long POISON = _IOWR(0xAA, 0x08, Poison);

}  // namespace osf::faults
