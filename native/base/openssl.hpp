// The machine's libcrypto, loaded when it is first needed: whoever does without hosts and KV pools does without it.
#pragma once

#include <dlfcn.h>

#include <string>

namespace osf {

class OpenSsl {
public:
    template <class F>
    void find(F& function, const char* name) {
        if (!handle_) return;
        function = reinterpret_cast<F>(dlsym(handle_, name));
        if (!function && trouble.empty()) trouble = "it has no function " + std::string(name);
    }
    std::string trouble;    // why it cannot be used
    static constexpr const char* WHERE = "(libcrypto.so.3; Debian and Ubuntu: apt install libssl3, Fedora: dnf install openssl-libs): ";

protected:
    OpenSsl() : handle_(dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
        if (!handle_) trouble = dlerror();
    }

private:
    void* handle_;
};

}  // namespace osf
