readCurves();
showTokenTips();
if (data.rollouts.length) browseRollouts();
if (data.questions.pairs.length) browseQuestions();
