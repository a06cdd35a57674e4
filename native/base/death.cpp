#include "base/death.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <execinfo.h>
#include <unistd.h>

namespace osf {

struct Fatal { int number; const char* name; };
static constexpr Fatal FATAL[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGABRT, "SIGABRT"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}};
static char label[200];
alignas(16) static char other_stack[64 * 1024];  // the agent reports from here, should it have used up its own

// Also in a signal handler: snprintf of short texts and integers takes no memory and no lock in glibc.
static void line(const char* what) {
    char text[900];
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const long long second = now.tv_sec % 86'400;
    std::snprintf(text, sizeof text, "%02lld:%02lld:%02lld.%03ld %s, process %d, ends by %s\n", second / 3600, second / 60 % 60, second % 60,
                  now.tv_nsec / 1'000'000, label, int(getpid()), what);
    [[maybe_unused]] ssize_t put = write(STDERR_FILENO, text, strlen(text));
}

static void on_fatal(int number, siginfo_t* info, void*) {
    const char* name = "";
    for (const Fatal& fatal : FATAL)
        if (fatal.number == number) name = fatal.name;
    char text[160];
    if (info->si_code <= 0) std::snprintf(text, sizeof text, "%s, which process %d sent; it was at", name, int(info->si_pid));
    else std::snprintf(text, sizeof text, "%s at address %p; it was at", name, info->si_addr);
    line(text);
    void* places[64];
    backtrace_symbols_fd(places, backtrace(places, 64), STDERR_FILENO);
    signal(number, SIG_DFL);
    raise(number);  // taken when this handler returns
}

static void on_terminate() {
    char text[600] = "std::terminate";
    try {
        if (auto error = std::current_exception()) std::rethrow_exception(error);
    } catch (const std::exception& error) {
        std::snprintf(text, sizeof text, "an exception that nobody caught: %s", error.what());
    } catch (...) {
        std::snprintf(text, sizeof text, "an exception that nobody caught");
    }
    line(text);
    std::abort();  // on_fatal says where
}

void report_death(const std::string& who) {
    std::snprintf(label, sizeof label, "%s", who.c_str());
    void* place;
    backtrace(&place, 1);  // the first call loads a library
    stack_t stack{};
    if (sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_DISABLE)) {
        stack = {};
        stack.ss_sp = other_stack;
        stack.ss_size = sizeof other_stack;
        sigaltstack(&stack, nullptr);
    }
    std::set_terminate(on_terminate);
    for (const Fatal& fatal : FATAL) {
        struct sigaction action {};
        if (sigaction(fatal.number, nullptr, &action) < 0 || (action.sa_flags & SA_SIGINFO) || action.sa_handler != SIG_DFL) continue;
        action = {};
        action.sa_sigaction = on_fatal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(fatal.number, &action, nullptr);
    }
}

}  // namespace osf
