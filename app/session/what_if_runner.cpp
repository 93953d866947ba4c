// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/what_if_runner.h"

#include <utility>

namespace bulkhead::ui {

WhatIfRunner::WhatIfRunner(QObject* parent) : QObject(parent) {
    pool_.setMaxThreadCount(1);
}

WhatIfRunner::~WhatIfRunner() {
    pool_.waitForDone();
}

void WhatIfRunner::ask(const model::WhatIf& scenario) {
    if (running_) {
        waiting_ = scenario;
        return;
    }
    start(scenario);
}

void WhatIfRunner::start(const model::WhatIf& scenario) {
    running_ = true;
    pool_.start([this, scenario] {
        QMetaObject::invokeMethod(
            this, [this, study = studyOf(scenario)] { finish(study); }, Qt::QueuedConnection);
    });
}

void WhatIfRunner::finish(const WhatIfStudy& study) {
    running_ = false;
    if (const auto next = std::exchange(waiting_, std::nullopt)) start(*next);
    Q_EMIT answered(study);
}

}  // namespace bulkhead::ui
