// Where a keeper takes in processes of its host, also at the limit of open files: then one descriptor that is held in reserve is
// given up for a moment, to tell the process why and to send it away. Left in the queue it would keep the keeper awake for ever.
#pragma once

#include <functional>
#include <string>

#include "base/base.hpp"

namespace osf::faults {

std::string limit_of_files();  // "it is at the limit of 1024 open files (ulimit -n); raise it", for messages

class LocalDoor {
public:
    // `label` begins what a process that is sent away is told.
    LocalDoor(std::string label, std::function<void(const std::string&)> say);
    ~LocalDoor();
    LocalDoor(const LocalDoor&) = delete;
    LocalDoor& operator=(const LocalDoor&) = delete;

    int next(int listening);  // the next process of this user or of root; -1: none waits

private:
    void send_away(int listening);

    const std::string label_;
    const std::function<void(const std::string&)> say_;
    int reserve_ = -1;
};

}  // namespace osf::faults
