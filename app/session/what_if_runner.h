// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <QThreadPool>
#include <optional>

#include "app/models/what_if_study.h"

namespace bulkhead::ui {

/// Studies scenarios off the GUI's thread, one at a time. Of questions that come meanwhile only the
/// newest is kept. Thread: the GUI's; `answered` comes there too.
class WhatIfRunner final : public QObject {
    Q_OBJECT
  public:
    explicit WhatIfRunner(QObject* parent = nullptr);
    /// Waits for the study under way, which is bounded.
    ~WhatIfRunner() override;

    void ask(const model::WhatIf& scenario);

  Q_SIGNALS:
    void answered(const WhatIfStudy& study);

  private:
    void start(const model::WhatIf& scenario);
    void finish(const WhatIfStudy& study);

    QThreadPool pool_;
    std::optional<model::WhatIf> waiting_;
    bool running_ = false;
};

}  // namespace bulkhead::ui
