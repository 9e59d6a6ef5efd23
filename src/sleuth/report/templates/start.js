readCurves();
if (data.rollouts?.length) browseRollouts();
if (data.questions.rows.length) browseQuestions();
