// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <cstdint>
#include <optional>

namespace bulkhead::ui {

/// The moment the operator points at, shared by Timeline, Training and Events. Unix nanoseconds;
/// none: follow the present. Thread: the GUI's.
class TimeCursor final : public QObject {
    Q_OBJECT
  public:
    using QObject::QObject;
    std::optional<int64_t> at() const { return at_; }
    void set(std::optional<int64_t> at) {
        if (at == at_) return;
        at_ = at;
        Q_EMIT moved();
    }

  Q_SIGNALS:
    void moved();

  private:
    std::optional<int64_t> at_;
};

}  // namespace bulkhead::ui
