// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>
#include <vector>

#include "app/models/what_if_form.h"

class QBoxLayout;
class QComboBox;
class QLabel;
class QSlider;
class QToolButton;

namespace bulkhead::ui {

/// The numbers of a scenario: what to start from, a slider for each, the rarer ones folded away.
class WhatIfPanel final : public QWidget {
    Q_OBJECT
  public:
    explicit WhatIfPanel(QWidget* parent = nullptr);

    const model::WhatIf& scenario() const { return scenario_; }
    /// Some number is no longer the starting point's.
    bool isChanged() const;
    /// Back to the starting point.
    void restore();
    QWidget* focusTarget();

  Q_SIGNALS:
    void changed();

  protected:
    /// The wheel scrolls the panel unless a control has the keyboard.
    bool eventFilter(QObject* watched, QEvent* event) override;

  private:
    struct Row {
        const Knob* knob;
        QLabel* name;
        QLabel* value;
        QSlider* slider;
    };
    void addChoices(QBoxLayout* column);
    void addSlider(QBoxLayout* column, const Knob& knob);
    QWidget* makeMore();
    const model::WhatIfPreset& start() const;
    void set(const model::WhatIf& scenario);

    QComboBox* start_;
    QComboBox* recovery_;
    QComboBox* spacing_;
    QToolButton* more_;
    std::vector<Row> rows_;
    model::WhatIf scenario_;
};

}  // namespace bulkhead::ui
