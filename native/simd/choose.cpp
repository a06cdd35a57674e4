#include "simd/choose.hpp"

#include "base/base.hpp"

namespace osf::simd {

std::vector<const Kernels*> all_kernels() {
    std::vector<const Kernels*> found = {&plain_kernels};
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (avx2_kernels && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) found.push_back(avx2_kernels);
    if (avx512_kernels && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        found.push_back(avx512_kernels);
#endif
    return found;
}

static std::atomic<const Kernels*>& chosen() {
    static std::atomic<const Kernels*> them = all_kernels().back();
    return them;
}

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

void choose_kernels(std::string_view name) {
    auto found = all_kernels();
    for (const Kernels* one : found)
        if (name.empty() || one->name == name) chosen() = name.empty() ? found.back() : one;
    if (!name.empty() && name != kernels().name) throw Error(Code::bad_input, "this processor has no kernels '" + std::string(name) + "'");
}

}  // namespace osf::simd
