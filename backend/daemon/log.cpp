// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "backend/model/json.h"
#include "backend/model/names.h"

namespace bulkhead::daemon {
namespace {

/// The message as a JSON string, or as one line of text: what jobs and others say cannot look like
/// lines of ours.
class Message final : public spdlog::custom_flag_formatter {
  public:
    explicit Message(bool json) : json_(json) {}

    void format(const spdlog::details::log_msg& line, const std::tm&,
                spdlog::memory_buf_t& to) override {
        const std::string said(line.payload.begin(), line.payload.end());
        const std::string text = json_ ? model::dumpJson(said) : model::printable(said);
        to.append(text.data(), text.data() + text.size());
    }
    std::unique_ptr<custom_flag_formatter> clone() const override {
        return std::make_unique<Message>(json_);
    }

  private:
    const bool json_;
};

}  // namespace

void startLog(const std::string& format) {
    spdlog::set_default_logger(spdlog::stderr_logger_mt("bulkheadd"));
    const bool json = format == "json";
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<Message>('*', json).set_pattern(
        json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","pid":%P,"message":%*})"
             : "%Y-%m-%d %H:%M:%S.%e %^%l%$ %*");
    spdlog::set_formatter(std::move(formatter));
}

}  // namespace bulkhead::daemon
