// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <cstdint>
#include <optional>

namespace bulkhead::ui {

/// The moment the operator points at, shared by Timeline, Training and Events. Unix nanoseconds;
/// none: follow the present. And the stretch that every page shows, with whom it is about; none:
/// each page as it likes. Thread: the GUI's.
class TimeCursor final : public QObject {
    Q_OBJECT
  public:
    struct Frame {
        int64_t beginNs = 0;
        int64_t endNs = 0;
        int32_t replica = -1;   ///< -1: the job as a whole
        uint64_t incident = 0;  ///< 0: none
        bool operator==(const Frame&) const = default;
    };
    using QObject::QObject;
    std::optional<int64_t> at() const { return at_; }
    void set(std::optional<int64_t> at) {
        if (at == at_) return;
        at_ = at;
        Q_EMIT moved();
    }

    const std::optional<Frame>& frame() const { return frame_; }
    void setFrame(std::optional<Frame> frame) {
        if (frame == frame_) return;
        frame_ = frame;
        Q_EMIT framed();
    }

  Q_SIGNALS:
    void moved();
    void framed();

  private:
    std::optional<Frame> frame_;
    std::optional<int64_t> at_;
};

}  // namespace bulkhead::ui
