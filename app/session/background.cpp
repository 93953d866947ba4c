// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/background.h"

namespace bulkhead::ui {

Background::Background(QObject* parent) : QObject(parent) {
    pool_.setMaxThreadCount(1);
}

Background::~Background() {
    pool_.waitForDone();
}

void Background::ask(Question question) {
    if (running_) {
        waiting_ = std::move(question);
        return;
    }
    running_ = true;
    pool_.start([this, question = std::move(question)] {
        QMetaObject::invokeMethod(
            this, [this, answer = question()] { finish(answer); }, Qt::QueuedConnection);
    });
}

void Background::finish(const Answer& answer) {
    running_ = false;
    if (Question next = std::exchange(waiting_, nullptr)) ask(std::move(next));
    answer();
}

}  // namespace bulkhead::ui
